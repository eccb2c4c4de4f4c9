//! Values of flags: numbers in a range.

/// The value of a flag that is refused: what it must be.
#[derive(Debug, thiserror::Error)]
#[error("{wanted}")]
pub(super) struct Refused {
    pub(super) wanted: &'static str,
}

/// Parses a number that fits.
pub(super) fn number<F: Fn(f64) -> bool + Clone + Send + Sync + 'static>(
    fits: F,
    wanted: &'static str,
) -> impl Fn(&str) -> Result<f64, Refused> + Clone + Send + Sync + 'static {
    move |text: &str| text.parse().ok().filter(|value| fits(*value)).ok_or(Refused { wanted })
}

/// A number of rows, or `all`.
pub(super) fn row_count(text: &str) -> Result<u64, Refused> {
    if text == "all" {
        return Ok(u64::MAX);
    }
    text.parse().map_err(|_| Refused { wanted: "must be a whole number, or all" })
}
