//! Patterns in which `*` matches any characters, `/` and `.` included; no other character is
//! special.

/// Whether `pattern` matches all of `name`.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts = rest.split('*');
    let last = parts.next_back().unwrap_or_default();
    // The leftmost match of a part leaves the longest rest for the following parts.
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name, expected) in [
            ("model.embed_tokens.weight", "model.embed_tokens.weight", true),
            ("model.layers.0.*", "model.layers.0.mlp.up_proj.weight", true),
            ("*.mlp.*.weight", "model.layers.0.mlp.up_proj.weight", true),
            ("*norm*", "model.norm.weight", true),
            ("data/*.parquet", "data/train/0.parquet", true),
            ("a*b*c", "aXbYbc", true),
            ("a*a", "a", false),
            ("*", "", true),
            ("model.layers.1.*", "model.layers.0.mlp.up_proj.weight", false),
            ("*.bias", "model.norm.weight", false),
            ("norm", "model.norm.weight", false),
            ("a?c", "abc", false),
            ("[ab]", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
