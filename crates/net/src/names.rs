//! Resolution of host names, and which addresses are public.

use std::net::{IpAddr, Ipv4Addr};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// An address that is not public.
#[derive(Debug)]
pub(super) struct Inside(IpAddr);

impl std::fmt::Display for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not a public address", self.0)
    }
}

impl std::error::Error for Inside {}

/// A name without an address, with the system's message.
#[derive(Debug)]
pub(super) struct Unresolved(std::io::Error);

impl std::fmt::Display for Unresolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Unresolved {}

/// Resolves names; with `public_only` it refuses those with addresses that are not public.
#[derive(Debug, Default)]
pub(super) struct NameResolver {
    system: DefaultResolver,
    public_only: bool,
}

impl NameResolver {
    pub(super) fn public_only() -> Self {
        Self { public_only: true, ..Self::default() }
    }
}

impl Resolver for NameResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let addresses = self.system.resolve(uri, config, timeout).map_err(|error| match error {
            // The system's error has no special kind.
            ureq::Error::Io(error) => ureq::Error::Other(Box::new(Unresolved(error))),
            other => other,
        })?;
        // The user chooses the proxy.
        let to_proxy = config.proxy().is_some_and(|proxy| uri.host() == Some(proxy.host()));
        match addresses.iter().find(|address| self.public_only && !to_proxy && !is_public(address.ip())) {
            None => Ok(addresses),
            Some(address) => Err(ureq::Error::Other(Box::new(Inside(address.ip())))),
        }
    }
}

/// Whether an address is public: not this machine, a private network, or one with a special meaning
/// (IANA's registries of special-purpose addresses).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => {
            let parts = v6.segments();
            let embedded = |at: usize| Ipv4Addr::from(u32::from(parts[at]) << 16 | u32::from(parts[at + 1]));
            match parts {
                // Mapped and translated addresses, 6to4: the embedded address counts.
                [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(embedded(6)),
                [0x2002, ..] => is_public_v4(embedded(1)),
                [0x2001, 0x0000..=0x01ff | 0x0db8, ..] => false,
                [first, ..] => first & 0xe000 == 0x2000,
            }
        }
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match (a, b, c) {
        (0 | 10 | 127 | 224.., ..)
        | (169, 254, _)
        | (192, 168, _)
        | (192, 0, 0 | 2)
        | (198, 51, 100)
        | (203, 0, 113) => true,
        (100, b, _) => b & 0xc0 == 64,
        (172, b, _) => b & 0xf0 == 16,
        (198, b, _) => b & 0xfe == 18,
        _ => false,
    };
    !special
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn special_purpose_ip_addresses_are_not_public() {
        let public = |text: &str| is_public(text.parse().unwrap());
        for text in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "198.20.0.1",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "2002:101:101::",
        ] {
            assert!(public(text), "{text}");
        }
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "fec0::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn a_name_without_an_address_is_an_error_of_its_own() {
        let timeout = NextTimeout { after: Duration::from_secs(5).into(), ..NextTimeout::default() };
        let url = "http://a..invalid/".parse().unwrap();
        let error = NameResolver::default().resolve(&url, &Config::default(), timeout).err().unwrap();
        assert!(matches!(&error, ureq::Error::Other(inner) if inner.is::<Unresolved>()), "{error}");
    }
}
