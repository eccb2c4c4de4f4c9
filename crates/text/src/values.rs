//! Values of Jinja2 that minijinja does not have: tuples, the views of dictionaries, ranges,
//! `joiner` and `cycler`.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value as Jinja};

use super::python;
use super::time_limit::in_time;

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
}

impl Items {
    pub(super) fn tuple(items: impl IntoIterator<Item = Jinja>) -> Jinja {
        Jinja::from_object(Self { all: items.into_iter().collect(), view: "", names: &[] })
    }

    pub(super) fn view(view: &'static str, items: impl IntoIterator<Item = Jinja>) -> Jinja {
        Jinja::from_object(Self { all: items.into_iter().collect(), view, names: &[] })
    }

    /// A group of the filter `groupby`: a tuple whose items have names.
    pub(super) fn group(items: impl IntoIterator<Item = Jinja>) -> Jinja {
        Jinja::from_object(Self { all: items.into_iter().collect(), view: "", names: &["grouper", "list"] })
    }

    pub(super) fn is_tuple(&self) -> bool {
        self.view.is_empty()
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

/// The payload of the unwinding that ends a rendering (`products`).
pub(super) struct RenderingLate;

/// A list whose reading checks the time.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) items: Vec<Jinja>,
    /// What Python prints of a range; empty for a list.
    pub(super) range: String,
}

/// What Python prints of a range; `None` for other values.
pub(super) fn range(value: &Jinja) -> Option<&str> {
    value.downcast_object_ref::<Timed>().map(|timed| timed.range.as_str()).filter(|range| !range.is_empty())
}

impl Timed {
    fn check() {
        if in_time().is_err() {
            resume_unwind(Box::new(RenderingLate));
        }
    }
}

impl Object for Timed {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        Self::check();
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Self::check();
        Enumerator::Seq(self.items.len())
    }
}

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_function(TUPLE, |items: Vec<Jinja>| Items::tuple(items));
    // Names that Jinja2 defines and r1 does not have.
    for name in ["lipsum", "self"] {
        environment.add_function(name, move |_: Rest<Jinja>| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::UnknownFunction, format!("`{name}` is not supported")))
        });
    }
    environment.add_function("joiner", |separator: Option<Jinja>, options: Kwargs| -> Result<Jinja, Error> {
        let separator = separator.or(options.get("sep")?).unwrap_or_else(|| ", ".into());
        options.assert_all_used()?;
        Ok(Jinja::from_object(Joiner { separator, is_used: AtomicBool::new(false) }))
    });
    environment.add_function("cycler", |items: Rest<Jinja>| -> Result<Jinja, Error> {
        if items.is_empty() {
            return Err(Error::new(ErrorKind::MissingArgument, "at least one item has to be provided"));
        }
        Ok(Jinja::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) }))
    });
}

/// Returns nothing on its first call, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: Jinja,
    is_used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &State<'_, '_>, args: &[Jinja]) -> Result<Jinja, Error> {
        let () = from_args(args)?;
        Ok(if self.is_used.swap(true, Relaxed) { self.separator.clone() } else { "".into() })
    }
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
