//! Parts of URLs.

use std::fmt::Write;

use ureq::http::Uri;

/// `scheme://host:port` of a URL, the scope of credentials. `None` if it is not http or https.
pub fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?;
    let port = match (uri.port_u16(), scheme) {
        (Some(port), "http" | "https") => port,
        (None, "http") => 80,
        (None, "https") => 443,
        _ => return None,
    };
    Some(format!("{scheme}://{}:{port}", uri.host()?.to_ascii_lowercase()))
}

/// The target of a `Location` relative to `base`. `None` if it must not be followed: not http(s),
/// or from https to http.
pub fn redirect(base: &str, location: &str) -> Option<String> {
    let scheme = base.split_once("://")?.0;
    if location.is_empty() {
        return None;
    }
    let target = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else {
        let start = base.find("://")? + 3;
        let host_end = base[start..].find(['/', '?', '#']).map_or(base.len(), |at| start + at);
        let path_end = base[host_end..].find(['?', '#']).map_or(base.len(), |at| host_end + at);
        let folder = base[host_end..path_end].rfind('/').map_or(host_end, |at| host_end + at);
        if location.starts_with('/') {
            format!("{}{location}", &base[..host_end])
        } else {
            format!("{}/{location}", &base[..folder])
        }
    };
    let origin = origin(&target)?;
    (scheme != "https" || origin.starts_with("https://")).then_some(target)
}

/// Escapes a path or a path segment for a URL: other characters are written as `%XX`.
pub fn escape(text: &str, keep_slashes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slashes && byte == b'/');
        if plain {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// The host of a URL in lower case, without the brackets of IPv6, and its port (explicit or
/// default).
pub fn host_and_port(url: &str) -> Option<(String, u16)> {
    let origin = origin(url)?;
    let (_, authority) = origin.split_once("://")?;
    let (host, port) = authority.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn url_origins_are_scheme_host_and_port() {
        for (url, expected) in [
            ("https://huggingface.co/a/b", Some("https://huggingface.co:443")),
            ("https://HuggingFace.co:443/x", Some("https://huggingface.co:443")),
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080")),
            ("https://hub.co@evil.com/x", Some("https://evil.com:443")),
            ("file:///etc/passwd", None),
            ("no address", None),
        ] {
            assert_eq!(origin(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn urls_have_hosts_and_ports() {
        assert_eq!(host_and_port("https://API.co/x"), Some(("api.co".to_owned(), 443)));
        assert_eq!(host_and_port("http://[::1]:80/"), Some(("::1".to_owned(), 80)));
        assert_eq!(host_and_port("ftp://x"), None);
    }

    #[test]
    fn relative_redirects_resolve_as_in_browsers() {
        let base = "https://hub.co/org/name/resolve/main/a.json?x=1";
        for (location, expected) in [
            ("https://cdn.co/x?y=1", Some("https://cdn.co/x?y=1")),
            ("//cdn.co/x", Some("https://cdn.co/x")),
            ("/new/name", Some("https://hub.co/new/name")),
            ("b.json", Some("https://hub.co/org/name/resolve/main/b.json")),
            ("http://cdn.co/x", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(redirect(base, location).as_deref(), expected, "{location}");
        }
        assert_eq!(redirect("http://h:1", "x").as_deref(), Some("http://h:1/x"));
        assert_eq!(redirect("http://h:1/a", "https://h/x").as_deref(), Some("https://h/x"));
    }

    #[test]
    fn url_paths_are_escaped() {
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(escape("a b/c?.json", true), "a%20b/c%3F.json");
    }
}
