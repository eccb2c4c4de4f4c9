//! Values of flags: numbers in a range.

/// The value of a flag that is refused: what it must be.
#[derive(Debug, thiserror::Error)]
#[error("{wanted}")]
pub(super) struct Refused {
    pub(super) wanted: &'static str,
}

/// A number that fits.
pub(super) fn number(text: &str, fits: impl Fn(f64) -> bool, wanted: &'static str) -> Result<f64, Refused> {
    text.parse().ok().filter(|value| fits(*value)).ok_or(Refused { wanted })
}

/// A number of rows, or `all`.
pub(super) fn row_count(text: &str) -> Result<u64, Refused> {
    if text == "all" {
        return Ok(u64::MAX);
    }
    text.parse().map_err(|_| Refused { wanted: "must be a whole number, or all" })
}
