//! Reading final answers out of replies and comparing them.
//!
//! Text that a policy is optimised against goes through here, so everything is one pass over the text: no
//! backtracking, no recursion deeper than [`DEPTH`].

/// The content of the last `\boxed{…}` (or `\fbox{…}`), braces balanced.
pub(crate) fn last_boxed(text: &str) -> Option<&str> {
    let (start, marker) = ["\\boxed", "\\fbox"].into_iter().filter_map(|m| Some((text.rfind(m)?, m))).max()?;
    let rest = text[start + marker.len()..].trim_start();
    let inner = rest.strip_prefix('{')?;
    let mut depth = 1_usize;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(inner[..at].trim());
                }
            }
            _ => {}
        }
    }
    None
}

/// The content of the last `<answer>…</answer>`.
pub(crate) fn tagged_answer(text: &str) -> Option<&str> {
    let end = text.rfind("</answer>")?;
    let start = text[..end].rfind("<answer>")? + "<answer>".len();
    Some(text[start..end].trim())
}

/// Relative difference below which numbers count as equal.
const TOLERANCE: f64 = 1e-6;

/// Deepest nesting of brackets that is read.
const DEPTH: usize = 32;

/// Whether two answers say the same: as numbers (fractions, thousands separators, percent, simple LaTeX) where both
/// are numbers, element by element where both are lists in the same brackets, as normalised text otherwise.
///
/// A percent sign is taken both ways: `50%` equals `50` and `0.5`.
pub(crate) fn math_equal(a: &str, b: &str) -> bool {
    let (a, b) = (Answer::read(a), Answer::read(b));
    equal(&a, &b, 0)
}

fn equal(a: &Answer, b: &Answer, depth: usize) -> bool {
    if a.text.is_empty() || b.text.is_empty() {
        return false;
    }
    if a.text == b.text {
        return true;
    }
    if let (Some(x), Some(y)) = (number(&a.text), number(&b.text)) {
        let scales = |answer: &Answer| if answer.percent { [1.0, 0.01] } else { [1.0, 1.0] };
        return scales(a).iter().any(|p| scales(b).iter().any(|q| close(x * p, y * q)));
    }
    if depth == 4 {
        return false;
    }
    match (split_list(&a.text), split_list(&b.text)) {
        (Some((open_a, items_a)), Some((open_b, items_b))) => {
            open_a == open_b
                && items_a.len() == items_b.len()
                && items_a.iter().zip(&items_b).all(|(x, y)| equal(&Answer::read(x), &Answer::read(y), depth + 1))
        }
        _ => false,
    }
}

fn close(x: f64, y: f64) -> bool {
    (x - y).abs() <= TOLERANCE * x.abs().max(y.abs())
}

/// An answer without its dressing.
struct Answer {
    text: String,
    percent: bool,
}

impl Answer {
    fn read(raw: &str) -> Self {
        let raw = last_boxed(raw).unwrap_or(raw);
        let mut text = raw.trim().trim_end_matches('.').to_owned();
        for (from, to) in DRESSING {
            if text.contains(from) {
                text = text.replace(from, to);
            }
        }
        text = drop_text_commands(&text);
        let mut compact: String = text.chars().filter(|c| !c.is_whitespace() && *c != '$').collect();
        compact = drop_thousands(&compact);
        // `x = 5` and `\theta = 5` say 5.
        if let Some((name, value)) = compact.split_once('=') {
            let name_of_one = name
                .strip_prefix('\\')
                .map_or_else(|| name.chars().count() == 1, |command| command.chars().all(char::is_alphabetic));
            if name_of_one && name.chars().any(char::is_alphabetic) && !value.contains('=') && !value.is_empty() {
                compact = value.to_owned();
            }
        }
        let percent = compact.ends_with('%');
        let text = compact.trim_end_matches('%').trim_end_matches('.').to_lowercase();
        Self { text, percent }
    }
}

/// What is written differently but means the same.
const DRESSING: [(&str, &str); 30] = [
    ("\\dfrac", "\\frac"),
    ("\\tfrac", "\\frac"),
    ("\\cfrac", "\\frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("\\!", ""),
    ("\\,", " "),
    ("\\;", " "),
    ("\\:", " "),
    ("\\ ", " "),
    ("\\quad", " "),
    ("\\$", ""),
    ("\\%", "%"),
    ("\\(", ""),
    ("\\)", ""),
    ("\\[", ""),
    ("\\]", ""),
    ("^\\circ", ""),
    ("^{\\circ}", ""),
    ("\\cdot", "*"),
    ("\\times", "*"),
    ("\\div", "/"),
    ("{,}", ","),
    ("\u{2212}", "-"),
    ("\u{00b0}", ""),
    ("\u{03c0}", "\\pi"),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("\\neq", "\\ne"),
    ("\\infinity", "\\infty"),
];

/// `\text{ cm}` after a number is a unit and goes; where it is all there is, its content stays.
fn drop_text_commands(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let commands = [
        "\\text",
        "\\textbf",
        "\\textnormal",
        "\\textrm",
        "\\textit",
        "\\mathrm",
        "\\mathbf",
        "\\mbox",
        "\\operatorname",
    ];
    // Behind the last brace no command ends; looking for its end again and again would take the square of the time.
    let end = text.rfind('}').unwrap_or(0);
    let mut blank = true;
    while let Some(at) = rest[..rest.len().min((end + rest.len()).saturating_sub(text.len()))].find('\\') {
        out.push_str(&rest[..at]);
        blank = blank && rest[..at].trim().is_empty();
        rest = &rest[at..];
        let inner = commands.iter().find_map(|command| {
            let after = rest.strip_prefix(command)?.trim_start().strip_prefix('{')?;
            let end = after.find('}')?;
            Some((&after[..end], &after[end + 1..]))
        });
        if let Some((content, after)) = inner {
            if blank {
                out.push_str(content);
                blank = content.trim().is_empty();
            }
            rest = after;
        } else {
            blank = false;
            out.push('\\');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// `1,234,567.8` -> `1234567.8`; lists such as `1,2` and `(1,234)` with odd groups stay.
fn drop_thousands(text: &str) -> String {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = body.split_once('.').map_or((body, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut groups = whole.split(',');
    let digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    let first = groups.next().unwrap_or_default();
    let rest: Vec<&str> = groups.collect();
    let fits = !rest.is_empty()
        && (1..=3).contains(&first.len())
        && digits(first)
        && !first.starts_with('0')
        && rest.iter().all(|group| group.len() == 3 && digits(group))
        && fraction.is_none_or(|fraction| fraction.trim_end_matches('%').bytes().all(|byte| byte.is_ascii_digit()));
    let last_percent = rest.last().is_some_and(|group| group.len() == 4 && group.ends_with('%') && digits(&group[..3]));
    let fits_percent =
        last_percent && digits(first) && rest[..rest.len() - 1].iter().all(|g| g.len() == 3 && digits(g));
    if fits || fits_percent { text.replace(',', "") } else { text.to_owned() }
}

/// `(1,2)`, `[1,2]`, `\{1,2\}`, `1,2` -> brackets and elements.
fn split_list(text: &str) -> Option<(String, Vec<&str>)> {
    let pairs = [("\\{", "\\}"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]"), ("{", "}")];
    let bracketed = pairs.iter().find_map(|(open, close)| {
        let inner = text.strip_prefix(open)?.strip_suffix(close)?;
        Some((format!("{open}{close}"), inner))
    });
    let (brackets, inner) = bracketed.unwrap_or((String::new(), text));
    let mut items = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                items.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    items.push(&inner[start..]);
    (items.len() > 1 || !brackets.is_empty()).then_some((brackets, items))
}

/// The value of a closed arithmetic expression, LaTeX or plain; `None` for anything with a variable in it.
fn number(text: &str) -> Option<f64> {
    let mut parser = Parser { rest: text, depth: 0 };
    let value = parser.sum()?;
    (parser.rest.is_empty() && value.is_finite()).then_some(value)
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Option<f64> {
        self.depth += 1;
        if self.depth > DEPTH {
            return None;
        }
        let mut total = self.product()?;
        loop {
            if self.eat("+") {
                total += self.product()?;
            } else if self.eat("-") {
                total -= self.product()?;
            } else {
                self.depth -= 1;
                return Some(total);
            }
        }
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.signed()?;
        loop {
            if self.eat("**") {
                return None;
            }
            if self.eat("*") {
                value *= self.signed()?;
            } else if self.eat("/") {
                value /= self.signed()?;
            } else if self.rest.starts_with(['\\', '(']) && !self.rest.starts_with("\\}") {
                // `3\sqrt{2}`, `2(3)`
                value *= self.power()?;
            } else {
                return Some(value);
            }
        }
    }

    fn signed(&mut self) -> Option<f64> {
        let mut sign = 1.0;
        for _ in 0..DEPTH {
            if self.eat("-") {
                sign = -sign;
            } else if !self.eat("+") {
                return Some(sign * self.power()?);
            }
        }
        None
    }

    fn power(&mut self) -> Option<f64> {
        let base = self.atom()?;
        if self.eat("^") {
            let exponent = if self.rest.starts_with('{') { self.braced()? } else { self.atom()? };
            return Some(base.powf(exponent));
        }
        Some(base)
    }

    fn atom(&mut self) -> Option<f64> {
        if self.eat("(") {
            let value = self.sum()?;
            return self.eat(")").then_some(value);
        }
        if self.rest.starts_with('{') {
            return self.braced();
        }
        if self.eat("\\frac") {
            let above = self.argument()?;
            return Some(above / self.argument()?);
        }
        if self.eat("\\sqrt") {
            let root = if self.eat("[") {
                let degree = self.sum()?;
                if !self.eat("]") {
                    return None;
                }
                degree
            } else {
                2.0
            };
            return Some(self.argument()?.powf(1.0 / root));
        }
        if self.eat("\\pi") {
            return Some(std::f64::consts::PI);
        }
        self.decimal()
    }

    /// `{…}`, or one digit as in `\frac12`.
    fn argument(&mut self) -> Option<f64> {
        if self.rest.starts_with('{') {
            return self.braced();
        }
        if self.rest.starts_with('\\') {
            return self.atom();
        }
        let digit = self.rest.chars().next()?.to_digit(10)?;
        self.rest = &self.rest[1..];
        Some(f64::from(digit))
    }

    fn braced(&mut self) -> Option<f64> {
        if !self.eat("{") {
            return None;
        }
        let value = self.sum()?;
        self.eat("}").then_some(value)
    }

    fn decimal(&mut self) -> Option<f64> {
        let bytes = self.rest.as_bytes();
        let mut end = 0;
        let mut dots = 0;
        while let Some(byte) = bytes.get(end) {
            match byte {
                b'0'..=b'9' => {}
                b'.' if dots == 0 => dots = 1,
                _ => break,
            }
            end += 1;
        }
        if end == dots {
            return None;
        }
        // An exponent, if digits follow: 1e-6.
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let digits = bytes[end + 1 + sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits > 0 {
                end += 1 + sign + digits;
            }
        }
        let value = self.rest[..end].parse().ok()?;
        self.rest = &self.rest[end..];
        Some(value)
    }
}
