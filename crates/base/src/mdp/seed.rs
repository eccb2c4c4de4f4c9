//! Seeds in Lua and JSON. Luau's numbers are doubles, which represent integers up to 2^53 exactly.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

use crate::schema::{Field, Misfit};

/// Limit of environment seeds, so that Luau can represent each exactly.
const LIMIT: u64 = 1 << 53;

/// The seed of an environment: `mixed` reduced to the bits of a double.
pub fn environment_seed(mixed: u64) -> u64 {
    mixed % LIMIT
}

/// A seed for Lua: a number, or a string of decimal digits if a double would round it (seeds of
/// runs by r1 0.1).
pub fn seed_value(seed: u64) -> Value {
    if seed <= LIMIT { Value::from(seed) } else { Value::from(seed.to_string()) }
}

/// A seed from Lua: an integer, or a string of decimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        seed_value(self.0).serialize(serializer)
    }
}

impl Field for Seed {
    type Value = Self;

    fn kind() -> String {
        "integer".to_owned()
    }

    fn lua() -> String {
        "number | string".to_owned()
    }

    fn read(key: &str, json: &Value, _: Option<&Self>) -> Result<Self, Misfit> {
        let seed = match json {
            Value::Number(number) => number.as_u64(),
            Value::String(digits) => digits.parse().ok(),
            _ => None,
        };
        let wanted = "a whole number from 0 to 2^53, or its digits as text";
        seed.map(Self).ok_or_else(|| Misfit::wanted(key, wanted, json))
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::read("seed", &Value::deserialize(deserializer)?, None).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn seeds_pass_through_lua_without_rounding() {
        for seed in [0, 7, LIMIT, LIMIT + 1, 17_400_000_000_000_000_001, u64::MAX] {
            let value = seed_value(seed);
            assert!(value.as_u64().is_none_or(|number| number <= LIMIT));
            assert_eq!(serde_json::from_value::<Seed>(value).unwrap().0, seed);
            assert!(environment_seed(seed) < LIMIT);
        }
        for odd in [Value::from(-1), Value::from(1.5), Value::from(1.74e19), Value::from("7x"), Value::Null] {
            let message = serde_json::from_value::<Seed>(odd).unwrap_err().to_string();
            assert!(message.contains("whole number from 0 to 2^53"), "{message}");
        }
    }
}
