//! Rotary position embeddings (arXiv:2104.09864) and their scaling to longer contexts.
//!
//! A head of D numbers is D / 2 pairs; pair i is rotated by `position * frequency[i]`. Scaling
//! methods differ in the frequencies. Both forms of a `config.json` are read: the classic one
//! (`rope_theta`, `rope_scaling`) and the one of transformers 5 (`rope_parameters`).

use std::f64::consts::TAU;
use std::sync::Arc;

use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use super::fields::Fields;
use r1_base::error::{Error, Kind as ErrorKind, Result};

/// Rotary embedding of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Wavelengths run from 2π to 2π · theta tokens.
    pub theta: f64,
    /// Part of each head that is rotated, its first numbers; the others have no position.
    pub partial: f64,
    pub scaling: Scaling,
    /// The pairs for positions in time, height and width, in models that see images.
    pub sections: Option<Sections>,
}

/// Pairs of a head for the three positions of a token (M-RoPE, arXiv:2409.12191).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Pairs for time, height and width.
    pub sizes: [usize; 3],
    /// Whether pairs for time, height and width alternate; the rest of the pairs is for time.
    pub interleaved: bool,
}

impl Sections {
    fn axes(self, pairs: usize) -> Vec<i64> {
        let [time, height, width] = self.sizes;
        let axis = |pair: usize| match (self.interleaved, pair % 3) {
            (true, 1) if pair < 3 * height => 1,
            (true, 2) if pair < 3 * width => 2,
            (true, _) => 0,
            (false, _) if pair < time => 0,
            (false, _) if pair < time + height => 1,
            (false, _) => 2,
        };
        (0..pairs).map(axis).collect()
    }
}

/// Scaling to contexts longer than in pretraining.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Sequences longer than `max_position_embeddings` get a larger theta that depends on their
    /// length ("NTK-aware").
    Dynamic {
        factor: f64,
    },
    /// YaRN: low frequencies divided by `factor`, high ones unchanged, a ramp between
    /// (arXiv:2309.00071).
    Yarn {
        factor: f64,
        /// Tokens of the original context.
        original: usize,
        /// Cosines and sines are multiplied by this.
        magnitude: f64,
        /// Rotations over the original context at which the ramp ends and begins.
        beta_fast: f64,
        beta_slow: f64,
        /// Whether the ramp begins and ends at whole pairs.
        truncate: bool,
    },
    /// Llama 3.1: smooth interpolation by wavelength.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: usize,
    },
    /// LongRoPE (arXiv:2402.13753): each frequency divided by its own factor. Sequences longer than
    /// the original context need other factors (`long_factor`), which are not supported.
    LongRope {
        short: Arc<[f64]>,
        /// Tokens of the original context.
        original: usize,
        /// Cosines and sines are multiplied by this.
        magnitude: f64,
    },
}

const ORIGINAL: &str = "original_max_position_embeddings";

impl Default for Rope {
    fn default() -> Self {
        Self { theta: 10_000.0, partial: 1.0, scaling: Scaling::None, sections: None }
    }
}

impl Rope {
    /// Reads the fields of a model with one rotary embedding for all layers; `default` has what is
    /// not given.
    pub(in crate::model) fn read(fields: &mut Fields, default: &Self, max_position: usize) -> Result<Self> {
        let theta = fields.number("rope_theta")?.unwrap_or(default.theta);
        let part = fields.number("partial_rotary_factor")?;
        let partial = part.unwrap_or(default.partial);
        let outer = Self { theta, partial, scaling: Scaling::None, sections: None };
        let outer_original = fields.optional_size(ORIGINAL)?;
        let original = outer_original.unwrap_or(max_position);
        let mut shared: Option<Self> = None;
        for name in ["rope_scaling", "rope_parameters"] {
            let Some(value) = fields.take(name) else { continue };
            let rope = Self::from_value(name, &value, &outer, [original, max_position])?;
            let inner = value[ORIGINAL].as_u64();
            if let (Some(original), Some(inner)) = (outer_original, inner)
                && original as u64 != inner
            {
                return Err(Fields::wrong(ORIGINAL, &original.into(), &format!("`{name}` has another value")));
            }
            if let Some(part) = part.filter(|part| (part - rope.partial).abs() > 0.0) {
                let other = format!("`{name}` has another value");
                return Err(Fields::wrong("partial_rotary_factor", &part.into(), &other));
            }
            if shared.as_ref().is_some_and(|other| *other != rope) {
                return Err(Fields::wrong(name, &value, "`rope_scaling` has another value"));
            }
            shared = Some(rope);
        }
        Ok(shared.unwrap_or(outer))
    }

    /// Reads one object of rope parameters, found at `table`, of a model with the given original
    /// and largest contexts.
    pub(in crate::model) fn from_value(
        table: &str,
        value: &Value,
        default: &Self,
        [original, max_position]: [usize; 2],
    ) -> Result<Self> {
        let Value::Object(object) = value else {
            return Err(Fields::wrong(table, value, "it must be an object"));
        };
        let mut inner = RopeFields { table, rest: object.clone(), original };
        let kind = inner.rest.shift_remove("rope_type").into_iter().chain(inner.rest.shift_remove("type"));
        let kinds: Vec<Value> = kind.filter(|kind| !kind.is_null()).collect();
        let theta = inner.number("rope_theta")?.unwrap_or(default.theta);
        let partial = inner.number("partial_rotary_factor")?.unwrap_or(default.partial);
        let sections = inner.sections();
        let kind = match kinds.as_slice() {
            [] => "default",
            [kind] => kind.as_str().unwrap_or_default(),
            [kind, other] if kind == other => kind.as_str().unwrap_or_default(),
            [_, other, ..] => return Err(inner.wrong("type", other, "`rope_type` has another value")),
        };
        let scaling = match kind {
            "default" => Scaling::None,
            // The name in older files.
            "mrope" if sections.is_some() => Scaling::None,
            "linear" => Scaling::Linear { factor: inner.factor()? },
            "dynamic" => Scaling::Dynamic { factor: inner.factor()? },
            "yarn" => inner.yarn()?,
            "llama3" => Scaling::Llama3 {
                factor: inner.factor()?,
                low: inner.required("low_freq_factor")?,
                high: inner.required("high_freq_factor")?,
                original: inner.original()?,
            },
            "longrope" => inner.long_rope(max_position)?,
            _ => {
                let shown = kinds.into_iter().next().unwrap_or_default();
                let accepted = "default, linear, dynamic, yarn, llama3 and longrope are supported";
                return Err(inner.wrong("rope_type", &shown, accepted));
            }
        };
        if let Some((name, value)) = inner.rest.iter().find(|(_, value)| !value.is_null()) {
            return Err(inner.wrong(name, value, &format!("it is not a field of rope type {kind:?}")));
        }
        Ok(Self { theta, partial, scaling, sections })
    }

    /// Factor of cosines and sines.
    pub(in crate::model) fn magnitude(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { magnitude, .. } | Scaling::LongRope { magnitude, .. } => magnitude,
            _ => 1.0,
        }
    }

    /// Factor by which sequences can exceed `max_position_embeddings`, if frequencies depend on
    /// their length.
    pub(in crate::model) fn dynamic_factor(&self) -> Option<f64> {
        match self.scaling {
            Scaling::Dynamic { factor } => Some(factor),
            _ => None,
        }
    }

    /// Longest supported sequence, if the scaling limits it.
    pub(in crate::model) fn limit(&self) -> Option<usize> {
        match self.scaling {
            Scaling::LongRope { original, .. } => Some(original),
            _ => None,
        }
    }

    /// Whether the frequencies of a sequence depend on its length.
    pub(in crate::model) fn is_dynamic(&self) -> bool {
        self.dynamic_factor().is_some()
    }

    /// Validates the number of rotated numbers of a head.
    pub(super) fn check(&self, head_dim: usize) -> Result<()> {
        let rotated = self.rotated(head_dim);
        let bad = |field: &str, why: String| Err(Error::new(ErrorKind::Model, format!("`{field}` {why}")));
        if let Scaling::LongRope { short, .. } = &self.scaling
            && 2 * short.len() != rotated
        {
            let why =
                format!("has {} numbers; it needs {}, one for each pair of rotated numbers", short.len(), rotated / 2);
            return bad("short_factor", why);
        }
        if !rotated.is_multiple_of(2) || !(2..=head_dim).contains(&rotated) {
            let why = format!("is {}; it must rotate an even number of a head's {head_dim}", self.partial);
            return bad("partial_rotary_factor", why);
        }
        Ok(())
    }

    /// For each pair of a head, the position that rotates it: 0 is time, 1 height, 2 width.
    pub(in crate::model) fn axes(&self, head_dim: usize) -> Vec<i64> {
        let pairs = self.rotated(head_dim) / 2;
        self.sections.map_or_else(|| vec![0; pairs], |sections| sections.axes(pairs))
    }

    /// Numbers of a head that are rotated.
    pub(in crate::model) fn rotated(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.partial) as usize
    }

    /// Frequencies `[R / 2]` of the R rotated numbers for a sequence of `length` tokens, f32 or
    /// f64. Operations and their order are the same as in transformers, so that angles are bitwise
    /// equal.
    pub(in crate::model) fn frequencies(
        &self,
        head_dim: usize,
        max_position: usize,
        length: i64,
        (kind, device): (Kind, Device),
    ) -> Result<Tensor> {
        let (options, head_dim) = ((kind, device), self.rotated(head_dim));
        let size = head_dim as f64;
        let theta = match self.scaling {
            Scaling::Dynamic { factor } => {
                let stretch = (length as f64 / max_position as f64).max(1.0);
                self.theta * (factor * stretch - (factor - 1.0)).powf(size / (size - 2.0))
            }
            _ => self.theta,
        };
        let powers = Tensor::f_arange_start_step(0, head_dim as i64, 2, options)?.f_div_scalar(size)?;
        let periods = Tensor::f_scalar_tensor(theta, options)?.f_pow(&powers)?;
        let plain = periods.f_reciprocal()?;
        Ok(match &self.scaling {
            Scaling::None | Scaling::Dynamic { .. } => plain,
            Scaling::Linear { factor } => plain.f_div_scalar(*factor)?,
            // The factors are f32 in transformers.
            Scaling::LongRope { short, .. } => {
                let factors = Tensor::f_from_slice(short)?.f_to_kind(Kind::Float)?.f_to(device)?.f_to_kind(kind)?;
                factors.f_mul(&periods)?.f_reciprocal()?
            }
            &Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                let pair = |turns: f64| size * (original as f64 / (turns * TAU)).ln() / (2.0 * self.theta.ln());
                let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(size - 1.0));
                if (high - low).abs() < f64::EPSILON {
                    high += 0.001;
                }
                let ramp = Tensor::f_arange(head_dim as i64 / 2, options)?
                    .f_sub_scalar(low)?
                    .f_div_scalar(high - low)?
                    .f_clamp(0.0, 1.0)?;
                let kept = ramp.f_neg()?.f_add_scalar(1.0)?;
                let stretched = periods.f_mul_scalar(factor)?.f_reciprocal()?;
                let rest = kept.f_neg()?.f_add_scalar(1.0)?;
                stretched.f_mul(&rest)?.f_add(&plain.f_mul(&kept)?)?
            }
            &Scaling::Llama3 { factor, low, high, original } => {
                let original = original as f64;
                let waves = plain.f_reciprocal()?.f_mul_scalar(TAU)?;
                let long = waves.f_gt(original / low)?;
                let short = waves.f_lt(original / high)?;
                let divided = plain.f_div_scalar(factor)?;
                let smooth =
                    waves.f_reciprocal()?.f_mul_scalar(original)?.f_sub_scalar(low)?.f_div_scalar(high - low)?;
                let rest = smooth.f_neg()?.f_add_scalar(1.0)?;
                let between = rest.f_mul(&plain)?.f_div_scalar(factor)?.f_add(&smooth.f_mul(&plain)?)?;
                let outside = divided.f_where_self(&long, &plain)?;
                outside.f_where_self(&long.f_logical_or(&short)?, &between)?
            }
        })
    }
}

/// Unread fields of one object of RoPE parameters.
struct RopeFields<'a> {
    table: &'a str,
    rest: Map<String, Value>,
    /// Default of `original_max_position_embeddings`.
    original: usize,
}

impl RopeFields<'_> {
    fn wrong(&self, name: &str, value: &Value, expected: &str) -> Error {
        Fields::wrong(&format!("{}.{name}", self.table), value, expected)
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.rest.shift_remove(name).filter(|value| !value.is_null())
    }

    /// A number above 0.
    fn number(&mut self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.wrong(name, &value, "it must be a number above 0"))
    }

    /// `None` for another value than three numbers: a text model does not use it.
    fn sections(&mut self) -> Option<Sections> {
        let interleaved = self.take("mrope_interleaved") == Some(Value::Bool(true));
        let sizes = serde_json::from_value(self.take("mrope_section")?).ok()?;
        Some(Sections { sizes, interleaved })
    }

    fn required(&mut self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| Fields::missing(&format!("{}.{name}", self.table)))
    }

    fn factor(&mut self) -> Result<f64> {
        let factor = self.required("factor")?;
        if factor < 1.0 {
            return Err(self.wrong("factor", &factor.into(), "it must be 1 or more"));
        }
        Ok(factor)
    }

    fn original(&mut self) -> Result<usize> {
        let Some(value) = self.take(ORIGINAL) else { return Ok(self.original) };
        let size = value.as_u64().filter(|&size| size > 0).and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.wrong(ORIGINAL, &value, "it must be a whole number above 0"))
    }

    /// One factor above 0 for each pair.
    fn factors(&mut self, name: &str) -> Result<Arc<[f64]>> {
        let value = self.take(name).ok_or_else(|| Fields::missing(&format!("{}.{name}", self.table)))?;
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        let numbers = value.as_array().and_then(|list| list.iter().map(number).collect::<Option<Vec<_>>>());
        numbers.map(Arc::from).ok_or_else(|| self.wrong(name, &value, "it must be a list of numbers above 0"))
    }

    fn long_rope(&mut self, max_position: usize) -> Result<Scaling> {
        let (short, long) = (self.factors("short_factor")?, self.factors("long_factor")?);
        if short.len() != long.len() {
            let (table, long, short) = (self.table, long.len(), short.len());
            let message = format!("`{table}.long_factor` has {long} numbers, and `short_factor` has {short}");
            return Err(Error::new(ErrorKind::Model, message));
        }
        let original = self.original()?;
        let factor = self.number("factor")?.unwrap_or(max_position as f64 / original as f64);
        let default = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (original as f64).ln()).sqrt() };
        let magnitude = self.number("attention_factor")?.unwrap_or(default);
        if !magnitude.is_finite() {
            return Err(self.wrong(ORIGINAL, &original.into(), "it must be 2 or more"));
        }
        Ok(Scaling::LongRope { short, original, magnitude })
    }

    fn yarn(&mut self) -> Result<Scaling> {
        let factor = self.factor()?;
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let (all, all_dim) = (self.number("mscale")?, self.number("mscale_all_dim")?);
        let magnitude = match (self.number("attention_factor")?, all, all_dim) {
            (Some(factor), ..) => factor,
            (None, Some(all), Some(all_dim)) => scale(all) / scale(all_dim),
            _ => scale(1.0),
        };
        let truncate = match self.take("truncate") {
            None => true,
            Some(value) => value.as_bool().ok_or_else(|| self.wrong("truncate", &value, "it must be true or false"))?,
        };
        Ok(Scaling::Yarn {
            factor,
            original: self.original()?,
            magnitude,
            beta_fast: self.number("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number("beta_slow")?.unwrap_or(1.0),
            truncate,
        })
    }
}
