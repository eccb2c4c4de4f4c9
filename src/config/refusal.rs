//! The error of a value that does not fit, with a hint: the nearest names, or the r1 name of a
//! setting of verl or TRL.

use super::counterparts;
use crate::error::{Error, Kind, nearest, suggest};
use crate::schema::{Misfit, Why};

impl From<Misfit> for Error {
    fn from(misfit: Misfit) -> Self {
        let error = Self::new(Kind::Script, misfit.to_string()).about_setting(&misfit.key);
        match misfit.why {
            Why::Unknown { name, known } => {
                error.hint(counterparts::hint(&misfit.key).unwrap_or_else(|| suggest(&name, known)))
            }
            Why::NotOneOf { got, names } => match counterparts::value_hint(&misfit.key, &got) {
                Some(hint) => error.hint(hint),
                None if nearest(&got, names.iter().copied()).is_empty() => error,
                None => error.hint(suggest(&got, names)),
            },
            Why::Wanted { .. } => error,
        }
    }
}
