//! The values of a column of trajectories, and arrays of a file as plain values.

use arrow_array::cast::AsArray;
use arrow_array::types as arrow;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use serde_json::Value;

use super::columns::ColumnKind;

/// The values of a column, one per trajectory.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnValues {
    /// NaN where there is none.
    Numbers(Vec<f64>),
    Texts(Vec<Option<String>>),
    /// JSON texts.
    Json(Vec<Option<String>>),
}

impl ColumnValues {
    pub fn empty(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Number => Self::Numbers(Vec::new()),
            ColumnKind::Text => Self::Texts(Vec::new()),
            ColumnKind::Json => Self::Json(Vec::new()),
        }
    }

    /// The numbers; none for another kind of column.
    pub fn numbers(&self) -> &[f64] {
        if let Self::Numbers(numbers) = self { numbers } else { &[] }
    }

    /// The texts, or the JSON texts; none for numbers.
    pub fn texts(&self) -> &[Option<String>] {
        if let Self::Texts(texts) | Self::Json(texts) = self { texts } else { &[] }
    }

    /// Number of trajectories.
    pub fn count(&self) -> usize {
        self.numbers().len().max(self.texts().len())
    }

    /// A value as JSON: null if there is none, whole numbers without a fraction.
    pub fn json(&self, row: usize) -> Value {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self {
            Self::Numbers(numbers) => match numbers[row] {
                whole if whole.fract() == 0.0 && whole.abs() < EXACT => Value::from(whole as i64),
                number => Value::from(number),
            },
            Self::Texts(texts) => texts[row].as_deref().map_or(Value::Null, Value::from),
            Self::Json(texts) => {
                texts[row].as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
            }
        }
    }
}

/// The values of an array of numbers or booleans, NaN for nulls; `None` for another type.
pub(super) fn numbers(array: &ArrayRef) -> Option<Vec<f64>> {
    macro_rules! of {
        ($kind:ty, $convert:expr) => {{
            let numbers = array.as_primitive::<$kind>();
            match numbers.null_count() {
                0 => numbers.values().iter().copied().map($convert).collect(),
                _ => numbers.iter().map(|value| value.map_or(f64::NAN, $convert)).collect(),
            }
        }};
    }
    Some(match array.data_type() {
        DataType::Null => vec![f64::NAN; array.len()],
        DataType::Boolean => {
            array.as_boolean().iter().map(|value| value.map_or(f64::NAN, |value| f64::from(u8::from(value)))).collect()
        }
        DataType::UInt16 => of!(arrow::UInt16Type, f64::from),
        DataType::UInt32 => of!(arrow::UInt32Type, f64::from),
        DataType::UInt64 => of!(arrow::UInt64Type, |value| value as f64),
        DataType::Float32 => of!(arrow::Float32Type, f64::from),
        DataType::Float64 => of!(arrow::Float64Type, |value| value),
        _ => return None,
    })
}

/// The texts of an array; `None` for another type.
pub(super) fn texts(array: &ArrayRef) -> Option<Vec<Option<&str>>> {
    Some(match array.data_type() {
        DataType::Null => vec![None; array.len()],
        DataType::Utf8 => array.as_string::<i32>().iter().collect(),
        DataType::Utf8View => array.as_string_view().iter().collect(),
        _ => return None,
    })
}
