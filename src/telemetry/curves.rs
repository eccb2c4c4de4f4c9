//! The metrics of finished steps, read back from `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};

use super::metrics::FILE;
use crate::error::{Error, Kind, Result};

/// The values of a metric by step, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve(pub Vec<(u64, f64)>);

impl Curve {
    pub fn first(&self) -> Option<(u64, f64)> {
        self.0.first().copied()
    }

    pub fn last(&self) -> Option<(u64, f64)> {
        self.0.last().copied()
    }

    /// The first step with the largest value.
    pub fn highest(&self) -> Option<(u64, f64)> {
        self.0.iter().copied().reduce(|best, one| if one.1 > best.1 { one } else { best })
    }

    /// The first step with the smallest value.
    pub fn lowest(&self) -> Option<(u64, f64)> {
        self.0.iter().copied().reduce(|best, one| if one.1 < best.1 { one } else { best })
    }

    /// Mean over the last tenth of the values, at least one.
    pub fn tail(&self) -> Option<f64> {
        let count = self.0.len().div_ceil(10);
        let values = &self.0[self.0.len() - count..];
        (count > 0).then(|| values.iter().map(|(_, value)| value).sum::<f64>() / count as f64)
    }
}

/// The metrics of a run by name. Values that are not finite are left out; of a step that was logged
/// twice, as before a resume, the last value counts.
///
/// # Errors
/// [`Kind::Store`] if the run has no metrics, or for a damaged line other than the last.
pub fn read_curves(run: &Path) -> Result<BTreeMap<String, Curve>> {
    let path = run.join(FILE);
    let file = File::open(&path).map_err(|error| {
        let error = Error::io(Kind::Store, "read the metrics", &path, &error);
        error.hint("name a directory that `r1 run` or `r1 sft` made, such as runs/NAME")
    })?;
    let mut curves: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut damaged = None;
    for (line, number) in BufReader::new(file).lines().zip(1_u64..) {
        let line = line.map_err(|error| Error::io(Kind::Store, "read the metrics", &path, &error))?;
        if let Some(error) = damaged.take() {
            return Err(error);
        }
        let Some((step, fields)) = read(&line) else {
            // The last line is incomplete if the run was killed while it was written.
            let location = format!("{}:{number}", path.display());
            damaged = Some(Error::new(Kind::Store, "a line of the metrics is damaged").at(location));
            continue;
        };
        for (name, value) in fields {
            if let Some(value) = value.as_f64().filter(|value| value.is_finite() && name.contains('/')) {
                curves.entry(name).or_default().insert(step, value);
            }
        }
    }
    Ok(curves.into_iter().map(|(name, values)| (name, Curve(values.into_iter().collect()))).collect())
}

fn read(line: &str) -> Option<(u64, Map<String, Value>)> {
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else { return None };
    Some((fields.get("step")?.as_u64()?, fields))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn curves_are_the_last_values_of_each_step() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(dir.path().join(FILE), text).unwrap();
        write(
            "{\"step\":1,\"time\":5,\"reward/mean\":0.5,\"kl/mean\":null}\n{\"step\":2,\"reward/mean\":0.25}\n\
             {\"step\":2,\"reward/mean\":1.5}\n{\"step\":2,\"eval/accuracy\":1}\n{\"step\":3,\"rewa",
        );
        let curves = read_curves(dir.path()).unwrap();
        assert_eq!(curves.keys().collect::<Vec<_>>(), ["eval/accuracy", "reward/mean"]);
        let reward = &curves["reward/mean"];
        assert_eq!(reward.0, [(1, 0.5), (2, 1.5)]);
        assert_eq!((reward.first(), reward.last(), reward.tail()), (Some((1, 0.5)), Some((2, 1.5)), Some(1.5)));
        assert_eq!((reward.lowest(), reward.highest()), (Some((1, 0.5)), Some((2, 1.5))));
        write("{\"step\":1}\n{\n{\"step\":2}\n");
        let error = read_curves(dir.path()).unwrap_err();
        assert!(error.place.unwrap().ends_with(":2"), "the damaged line");
        assert_eq!(Curve::default().tail(), None);
    }
}
