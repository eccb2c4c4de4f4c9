//! Jinja2 filters and tests for which minijinja's output differs from Python's.

use std::cmp::Ordering;
use std::sync::LazyLock;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, ErrorKind, FormatStyle, State, Value as Jinja, format_filter};
use regex::Regex;

use super::numbers::{extreme, float, int, number_of, round, sum};
use super::size_limits::{PrintedSize, check_list, check_size, narrow, narrow_fields, pattern, replaced};
use super::time_limit::in_time;
use super::values::{self, Items};
use super::{methods, python};

type TextChange = fn(&str) -> String;

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.set_formatter(|out, _, value| {
        in_time()?;
        Ok(python::write_str(out, value)?)
    });
    environment.set_unknown_method_callback(methods::call);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", text_of);
    checked(
        environment,
        check_list,
        [
            ("list", Jinja::from_function(minijinja::filters::list)),
            ("select", Jinja::from_function(minijinja::filters::select)),
            ("reject", Jinja::from_function(minijinja::filters::reject)),
            ("map", Jinja::from_function(minijinja::filters::map)),
            ("split", Jinja::from_function(minijinja::filters::split)),
            ("lines", Jinja::from_function(minijinja::filters::lines)),
        ],
    );
    checked(
        environment,
        |_| in_time(),
        [
            ("first", Jinja::from_function(minijinja::filters::first)),
            ("last", Jinja::from_function(minijinja::filters::last)),
            ("selectattr", Jinja::from_function(minijinja::filters::selectattr)),
            ("rejectattr", Jinja::from_function(minijinja::filters::rejectattr)),
        ],
    );
    environment.add_filter(
        "groupby",
        |value: Jinja, attribute: Option<&str>, options: Kwargs| -> Result<Jinja, minijinja::Error> {
            in_time()?;
            let groups = minijinja::filters::groupby(value, attribute, options)?;
            groups
                .try_iter()?
                .map(|group| {
                    Ok(Items::group([group.get_attr("grouper")?, group.get_attr("list")?.try_iter()?.collect()]))
                })
                .collect()
        },
    );
    environment.add_filter("reverse", |value: &Jinja| {
        check_list(value)?;
        match value.kind() {
            // The keys, of which minijinja keeps the order.
            ValueKind::Map => minijinja::filters::reverse(&value.try_iter()?.collect()),
            _ => minijinja::filters::reverse(value),
        }
    });
    environment.add_filter("unique", |state: &State, values: Jinja, options: Kwargs| {
        check_list(&values)?;
        refuse_mixed("unique", &values)?;
        minijinja::filters::unique(state, values, options)
    });
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: &Jinja| -> Result<Jinja, minijinja::Error> {
            if value.is_safe() {
                return Ok(value.clone());
            }
            // `&#34;` replaces one character.
            check_size(PrintedSize::of(value).bytes.saturating_mul(5))?;
            Ok(Jinja::from_safe_string(escape(&python::str(value))))
        });
    }
    let changes: [(&str, TextChange); 4] =
        [("lower", str::to_lowercase), ("upper", str::to_uppercase), ("capitalize", capitalize), ("title", title)];
    for (name, change) in changes {
        environment.add_filter(name, move |value: &Jinja| text_of(value).map(|text| change(&text)));
    }
    // It has the layout of Python's pprint, which r1 does not have.
    environment.remove_filter("pprint");
    environment.add_filter("max", |values: &Jinja, options: Kwargs| extreme(values, options, Ordering::Greater));
    environment.add_filter("min", |values: &Jinja, options: Kwargs| extreme(values, options, Ordering::Less));
    environment.add_filter("trim", trim);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment.add_filter("batch", |state: &State, value: Jinja, count: usize, fill: Option<Jinja>| {
        check_list(&value)?;
        minijinja::filters::batch(state, value, narrow(count)?, fill)
    });
    environment.add_filter("slice", |state: &State, value: Jinja, count: usize, fill: Option<Jinja>| {
        check_list(&value)?;
        minijinja::filters::slice(state, value, narrow(count)?, fill)
    });
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("replace", replace);
    environment.add_filter("sort", sort);
    environment.add_filter("sum", sum);
    environment.add_filter("round", round);
    environment.add_filter("wordcount", |text: &str| {
        static WORD: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+"));
        WORD.find_iter(text).count()
    });
    environment.add_filter("center", |text: &Jinja, width: Option<usize>, options: Kwargs| {
        let width = width.or(options.get("width")?).unwrap_or(80);
        options.assert_all_used()?;
        Ok::<_, minijinja::Error>(methods::padded(&text_of(text)?, narrow(width)?, ' ', "center"))
    });
    environment.add_filter("dictsort", |value: &Jinja, options: Kwargs| -> Result<Jinja, minijinja::Error> {
        check_list(value)?;
        let pairs = minijinja::filters::dictsort(value, options)?;
        let pairs = pairs.try_iter()?.map(|pair| pair.try_iter().map(Items::tuple));
        pairs.collect::<Result<Vec<_>, _>>().map(Jinja::from)
    });
    environment.add_filter("items", |state: &State, value: &Jinja| -> Result<Jinja, minijinja::Error> {
        if value.is_undefined() {
            Ok(Jinja::from(Vec::<Jinja>::new()))
        } else {
            methods::call(state, value, "items", &[])
        }
    });
    values::register(environment);
    environment.add_test("sequence", |value: &Jinja| {
        let is_range = value.kind() == ValueKind::Iterable && value.len().is_some();
        value.is_undefined() || is_range || matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    environment.add_test("number", |value: &Jinja| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    for (name, rest) in [("even", 0.0), ("odd", 1.0)] {
        environment.add_test(name, move |value: &Jinja| -> Result<bool, minijinja::Error> {
            let number = number_of(value);
            let number = number.ok_or_else(|| minijinja::Error::new(ErrorKind::InvalidOperation, "not a number"))?;
            Ok((number.rem_euclid(2.0) - rest).abs() == 0.0)
        });
    }
    environment.add_test("lower", |value: &Jinja| {
        methods::is_cased(&python::str(value), char::is_uppercase, char::is_lowercase)
    });
    environment.add_test("upper", |value: &Jinja| {
        methods::is_cased(&python::str(value), char::is_lowercase, char::is_uppercase)
    });
    environment
        .add_test("iterable", |value: &Jinja| value.is_undefined() || (!value.is_none() && value.try_iter().is_ok()));
}

/// Registers filters of minijinja that check their value first.
pub(super) fn checked<const N: usize>(
    environment: &mut Environment<'static>,
    check: fn(&Jinja) -> Result<(), minijinja::Error>,
    filters: [(&'static str, Jinja); N],
) {
    for (name, filter) in filters {
        environment.add_filter(name, move |state: &State, values: Rest<Jinja>| {
            values.first().map_or(Ok(()), check)?;
            filter.call(state, &values)
        });
    }
}

pub(super) fn escape(text: &str) -> String {
    let named = |letter| match letter {
        '&' => Some("&amp;"),
        '<' => Some("&lt;"),
        '>' => Some("&gt;"),
        '"' => Some("&#34;"),
        '\'' => Some("&#39;"),
        _ => None,
    };
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match named(letter) {
            Some(name) => out.push_str(name),
            None => out.push(letter),
        }
    }
    out
}

/// The `tojson` filter of transformers: `json.dumps`, with `ensure_ascii=False` by default.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn tojson(value: &Jinja, indent: Option<Jinja>, options: Kwargs) -> Result<Jinja, minijinja::Error> {
    let mut layout = python::JsonLayout::default();
    let named: Option<Jinja> = options.get("indent")?;
    if let Some(indent) = indent.or(named).filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        layout.indent = Some(narrow(usize::try_from(indent)?)?);
        ",".clone_into(&mut layout.item);
    }
    if let Some([item, key]) = options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        layout.item.clone_from(item);
        layout.key.clone_from(key);
    }
    layout.ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    layout.sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    if value.is_undefined() {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "Undefined is not JSON serializable"));
    }
    let size = PrintedSize::of(value);
    let spaces = layout.indent.unwrap_or(0).saturating_mul(size.depth).saturating_mul(size.values);
    let marks = (layout.item.len() + layout.key.len()).saturating_mul(size.values);
    check_size(size.bytes.saturating_add(spaces).saturating_add(marks))?;
    let json = serde_json::to_value(value).map_err(|error| {
        minijinja::Error::new(ErrorKind::InvalidOperation, "this value is not JSON serializable").with_source(error)
    })?;
    Ok(Jinja::from(python::dumps_with(&json, &layout)))
}

/// The `string` filter: `str(value)`.
fn text_of(value: &Jinja) -> Result<String, minijinja::Error> {
    check_size(PrintedSize::of(value).bytes)?;
    Ok(python::str(value))
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    let Some(first) = letters.next() else { return String::new() };
    first.to_uppercase().chain(letters.as_str().to_lowercase().chars()).collect()
}

/// The `title` filter: the first letter of each word is upper case. Words are separated by white
/// space, hyphens and opening brackets.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for letter in text.chars() {
        let separates = methods::is_space(letter) || matches!(letter, '-' | '(' | '{' | '[' | '<');
        if starts && !separates {
            out.extend(letter.to_uppercase());
        } else {
            out.extend(letter.to_lowercase());
        }
        starts = separates;
    }
    out
}

/// The `trim` filter: `str(value).strip(chars)`.
fn trim(value: &Jinja, chars: Option<&str>) -> Result<String, minijinja::Error> {
    let text = text_of(value)?;
    Ok(match chars {
        Some(chars) => text.trim_matches(|letter| chars.contains(letter)).to_owned(),
        None => text.trim().to_owned(),
    })
}

/// The `join` filter: `separator.join(map(str, values))`, optionally of an attribute.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn join(value: &Jinja, separator: Option<&str>, options: Kwargs) -> Result<String, minijinja::Error> {
    let named: Option<String> = options.get("d")?;
    let attribute: Option<String> = options.get("attribute")?;
    options.assert_all_used()?;
    let separator = separator.or(named.as_deref()).unwrap_or_default();
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match &attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        if index > 0 {
            out.push_str(separator);
        }
        check_size(out.len().saturating_add(PrintedSize::of(&item).bytes).saturating_add(separator.len()))?;
        out.push_str(&python::str(&item));
    }
    Ok(out)
}

/// The `indent` filter: `width` spaces before every line except the first and blank ones. A final
/// line break stays.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, minijinja::Error> {
    let width = narrow(width.or(options.get("width")?).unwrap_or(4))?;
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    check_size(text.len().saturating_add(text.matches('\n').count().saturating_mul(width)))?;
    let space = " ".repeat(width);
    let lines: Vec<String> = text
        .split('\n')
        .enumerate()
        .map(|(index, line)| {
            let wanted = if index == 0 { first } else { blank || !line.is_empty() };
            if wanted { format!("{space}{line}") } else { line.to_owned() }
        })
        .collect();
    Ok(lines.join("\n"))
}

/// The `format` filter: `text % values`, with lists and dictionaries as Python prints them.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn format(text: &str, values: Rest<Jinja>) -> Result<String, minijinja::Error> {
    formatted(text, &values)
}

pub(super) fn formatted(text: &str, values: &[Jinja]) -> Result<String, minijinja::Error> {
    let plain = |value: &Jinja| matches!(value.kind(), ValueKind::String | ValueKind::Number) || value.is_kwargs();
    let values: Vec<Jinja> =
        values.iter().map(|value| if plain(value) { value.clone() } else { python::str(value).into() }).collect();
    narrow_fields(text, FormatStyle::Printf, &values)?;
    format_filter(FormatStyle::Printf, text, &values)
}

/// The `replace` filter, with a count.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn replace(
    value: &Jinja,
    from: &str,
    to: &str,
    count: Option<usize>,
    options: Kwargs,
) -> Result<String, minijinja::Error> {
    let count = count.or(options.get("count")?);
    options.assert_all_used()?;
    let text = text_of(value)?;
    check_size(replaced(&text, from, to, count))?;
    Ok(count.map_or_else(|| text.replace(from, to), |count| text.replacen(from, to, count)))
}

/// Refuses booleans beside numbers, which Python compares as numbers.
fn refuse_mixed(filter: &str, values: &Jinja) -> Result<(), minijinja::Error> {
    let (mut booleans, mut numbers) = (false, false);
    for value in values.try_iter()? {
        booleans |= value.kind() == ValueKind::Bool;
        numbers |= value.kind() == ValueKind::Number;
    }
    if booleans && numbers {
        let why = format!("{filter}: booleans and numbers in one list");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, why));
    }
    Ok(())
}

/// The `sort` filter; Python also accepts its options as positional arguments.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja requires
fn sort(state: &State, value: Jinja, places: Rest<Jinja>) -> Result<Jinja, minijinja::Error> {
    const NAMES: [&str; 3] = ["reverse", "case_sensitive", "attribute"];
    check_list(&value)?;
    refuse_mixed("sort", &value)?;
    let (options, places): (Vec<&Jinja>, Vec<&Jinja>) = places.iter().partition(|value| value.is_kwargs());
    if places.len() > NAMES.len() {
        return Err(ErrorKind::TooManyArguments.into());
    }
    let mut named: Vec<(&str, Jinja)> = NAMES.into_iter().zip(places.into_iter().cloned()).collect();
    if let Some(options) = options.first() {
        let options = Kwargs::try_from((*options).clone())?;
        for name in NAMES {
            if let Some(value) = options.get::<Option<Jinja>>(name)? {
                named.push((name, value));
            }
        }
        options.assert_all_used()?;
    }
    minijinja::filters::sort(state, value, named.into_iter().collect())
}

/// The `length` filter; an error for undefined values.
fn length(value: &Jinja) -> Result<usize, minijinja::Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        minijinja::Error::new(ErrorKind::InvalidOperation, format!("object of type {} has no len()", value.kind()))
    })
}
