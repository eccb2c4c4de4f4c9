//! Values of flags: numbers in a range.

/// The value of a flag that is refused: what it must be.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) wanted: &'static str,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.wanted)
    }
}

impl std::error::Error for Refused {}

/// A number that fits.
pub(super) fn number(text: &str, fits: impl Fn(f64) -> bool, wanted: &'static str) -> Result<f64, Refused> {
    text.parse().ok().filter(|value| fits(*value)).ok_or(Refused { wanted })
}
