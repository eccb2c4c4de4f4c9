//! Values of Jinja2 that minijinja does not have: tuples, the views of dictionaries, ranges,
//! `joiner` and `cycler`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value as Jinja};

use super::python;

/// The function that translated templates call for `(a, b)`.
pub(super) const TUPLE: &str = "r1_tuple";

/// A list that Python prints differently: a tuple, or a view of a dictionary.
#[derive(Debug)]
pub(super) struct Items {
    all: Vec<Jinja>,
    /// `dict_items`, `dict_keys`, `dict_values`; empty for a tuple.
    view: &'static str,
    /// Names of the items, of a group.
    names: &'static [&'static str],
    /// What Python prints of a range.
    range: Option<String>,
}

impl Items {
    pub(super) fn tuple(items: impl IntoIterator<Item = Jinja>) -> Jinja {
        Self::view("", items)
    }

    pub(super) fn view(view: &'static str, items: impl IntoIterator<Item = Jinja>) -> Jinja {
        Jinja::from_object(Self { all: items.into_iter().collect(), view, names: &[], range: None })
    }

    /// A group of the filter `groupby`: a tuple whose items have names.
    pub(super) fn group(items: [Jinja; 2]) -> Jinja {
        Jinja::from_object(Self { all: items.into(), view: "", names: &["grouper", "list"], range: None })
    }

    pub(super) fn range(&self) -> Option<&str> {
        self.range.as_deref()
    }

    pub(super) fn is_tuple(&self) -> bool {
        self.view.is_empty() && self.range.is_none()
    }

    /// The text before and after its printed items.
    pub(super) fn brackets(&self) -> (String, &'static str) {
        match (self.view, self.all.len()) {
            ("", 1) => ("(".to_owned(), ",)"),
            ("", _) => ("(".to_owned(), ")"),
            (view, _) => (format!("{view}(["), "])"),
        }
    }
}

impl Object for Items {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        let named = key.as_str().and_then(|key| self.names.iter().position(|name| *name == key));
        self.all.get(named.or_else(|| key.as_usize())?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.all.len())
    }

    fn render(self: &Arc<Self>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        python::write_str(out, &Jinja::from_dyn_object(Arc::clone(self)))
    }
}

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_function("range", |from: isize, to: Option<isize>, step: Option<isize>| {
        let printed = match (to, step.unwrap_or(1)) {
            (None, 1) => format!("range(0, {from})"),
            (Some(to), 1) => format!("range({from}, {to})"),
            (to, step) => format!("range({}, {}, {step})", to.map_or(0, |_| from), to.unwrap_or(from)),
        };
        let all = minijinja::functions::range(from, to, step)?.try_iter()?.collect();
        Ok::<_, Error>(Jinja::from_object(Items { all, view: "", names: &[], range: Some(printed) }))
    });
    environment.add_function(TUPLE, |items: Vec<Jinja>| Items::tuple(items));
    // Names that Jinja2 defines and r1 does not have.
    for name in ["lipsum", "self"] {
        environment.add_function(name, move |_: Rest<Jinja>| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::UnknownFunction, format!("`{name}` is not supported")))
        });
    }
    environment.add_function("joiner", |separator: Option<Jinja>, options: Kwargs| -> Result<Jinja, Error> {
        let separator = separator.or(options.get("sep")?);
        options.assert_all_used()?;
        Ok(minijinja_contrib::globals::joiner(separator))
    });
    environment.add_function("cycler", |items: Rest<Jinja>| -> Result<Jinja, Error> {
        if items.is_empty() {
            return Err(Error::new(ErrorKind::MissingArgument, "at least one item has to be provided"));
        }
        Ok(Jinja::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
    });
}

/// Returns its items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Jinja>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Jinja {
        self.items.get(self.at.load(Relaxed)).cloned().unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(self: &Arc<Self>, _state: &State<'_, '_>, name: &str, args: &[Jinja]) -> Result<Jinja, Error> {
        let () = from_args(args)?;
        match name {
            "next" => {
                let current = self.current();
                self.at.store((self.at.load(Relaxed) + 1) % self.items.len(), Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Relaxed);
                Ok(Jinja::from(()))
            }
            _ => Err(ErrorKind::UnknownMethod.into()),
        }
    }
}
