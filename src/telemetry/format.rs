//! Number formats of human-readable output.

/// Rounded, with thousands separators: `8,412`.
pub fn thousands(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = if value <= -0.5 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `41%`; one decimal below 10%, unless it is a whole number.
pub fn percent(share: f64) -> String {
    let value = share * 100.0;
    if value > 0.0 && value < 9.95 && value.fract() > 0.05 {
        return format!("{value:.1}%");
    }
    // Adding 0 turns -0 into 0.
    format!("{:.0}%", value.round() + 0.0)
}

/// A count with its noun: `1 step`, `2 steps`, `1,000 trajectories`.
pub fn counted(count: usize, singular: &str, plural: &str) -> String {
    format!("{} {}", thousands(count as f64), if count == 1 { singular } else { plural })
}

/// Seconds as `0.4 s`, `12 s`, `2 min 03 s`, `1 h 05 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A number of any magnitude in about eight characters: `0.412`, `-12.3`, `3.1e-5`.
pub fn compact(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !value.is_finite() {
        value.to_string()
    } else if !(1e-3..1e6).contains(&size) {
        format!("{value:.1e}").replace(".0e", "e")
    } else if size < 0.01 {
        // Two digits.
        format!("{value:.4}").trim_end_matches('0').to_owned()
    } else if size < 10.0 {
        format!("{value:.3}")
    } else if size < 1000.0 {
        format!("{value:.1}")
    } else {
        thousands(value)
    }
}

/// A reward with its sign, rounded to six decimals: `+0.2` for 0.19999999999999996.
pub fn signed(value: f64) -> String {
    let sign = if value.is_sign_negative() && value != 0.0 || value.is_nan() { "" } else { "+" };
    format!("{sign}{}", plain(value))
}

/// As [`signed`], without a plus sign.
pub fn plain(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    let in_full = rounded.abs() < 1e15 && (rounded != 0.0 || value == 0.0);
    if in_full { format!("{}", rounded + 0.0) } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        let rewards = [0.2 + 0.1 - 0.1, -1.0, 0.0, -0.0, 1.0 / 3.0, -2e-9, 1e300, f64::NAN].map(signed);
        assert_eq!(rewards, ["+0.2", "-1", "+0", "+0", "+0.333333", "-2e-9", "+1e300", "NaN"]);
        assert_eq!(thousands(8412.3), "8,412");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(12.0), "12");
        assert_eq!(thousands(-1234.0), "-1,234");
        assert_eq!(thousands(-0.2), "0");
        assert_eq!(thousands(f64::NAN), "NaN");
        assert_eq!(percent(0.41), "41%");
        assert_eq!(percent(0.034), "3.4%");
        assert_eq!(percent(1.0), "100%");
        assert_eq!(percent(0.0), "0%");
        assert_eq!([percent(-0.0), percent(-0.001), percent(-0.02)], ["0%", "0%", "-2%"]);
        assert_eq!([counted(1, "step", "steps"), counted(0, "step", "steps")], ["1 step", "0 steps"]);
        assert_eq!(compact(0.4123), "0.412");
        assert_eq!(compact(3.14e-5), "3.1e-5");
        assert_eq!(compact(1e-6), "1e-6");
        assert_eq!([1.5e-3, 1e-3, -0.00987, 0.0456].map(compact), ["0.0015", "0.001", "-0.0099", "0.046"]);
        assert_eq!(compact(-12.34), "-12.3");
        assert_eq!(compact(0.0), "0");
    }

    #[test]
    fn durations_are_formatted_for_people() {
        assert_eq!(duration(0.43), "0.4 s");
        assert_eq!(duration(59.7), "1 min 00 s");
        assert_eq!(duration(12.2), "12 s");
        assert_eq!(duration(123.0), "2 min 03 s");
        assert_eq!(duration(3900.0), "1 h 05 min");
    }
}
