//! A policy loss written in Lua: the function is called once with a batch whose tensors are
//! expressions, and its computation is kept as a [`LossGraph`]. It has no access to tensor values,
//! and no Lua runs during training.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use mlua::{AnyUserData, Function, Lua, MetaMethod, Table, UserData, UserDataMethods, Value};
use serde_json::{Map, Value as Json};

use super::graph::{Binary, Clipped, Input, LossAgg, LossGraph, Op, Operand, Over, RatioUse, Shape, Unary};
use super::lua::{definition, fail, from_json, kind, location, misuse, raise};
use crate::error::{Error, Kind, suggest};

const NAME: &str = "loss";

const RATIO_STATS: &str = "`ratio_stats` takes a ratio for each token, and a clip range: two numbers, or two booleans for \
                           each token";

/// Maximum number of values that a loss logs.
const MOST_LOGGED: usize = 64;

type SharedGraph = Rc<RefCell<LossGraph>>;

/// A function that is being traced.
pub struct Trace {
    graph: SharedGraph,
    /// The options that the function must read.
    must_read: Vec<String>,
    read: Rc<RefCell<BTreeSet<String>>>,
    /// Arguments of the function.
    pub arguments: (AnyUserData, Table),
}

impl Trace {
    /// The batch and the options of a loss that declares none: it must read every one.
    pub fn new(lua: &Lua, options: &Json) -> mlua::Result<Self> {
        let names = options.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        Ok(Self::of(lua, options, false)?.must_read(names))
    }

    /// The batch and the options of a loss, all those that it declares.
    ///
    /// # Errors
    /// Errors of the virtual machine.
    pub fn of_declared(lua: &Lua, options: &Map<String, Json>) -> mlua::Result<Self> {
        Self::of(lua, &Json::Object(options.clone()), true)
    }

    /// Refuses the loss if it does not read these options.
    #[must_use]
    pub fn must_read(self, must_read: Vec<String>) -> Self {
        Self { must_read, ..self }
    }

    fn of(lua: &Lua, options: &Json, declared: bool) -> mlua::Result<Self> {
        let (graph, read) = (SharedGraph::default(), Rc::<RefCell<BTreeSet<String>>>::default());
        let values = match from_json(lua, options)? {
            Value::Table(values) => values,
            _ => lua.create_table()?,
        };
        // Unread options are mistakes, so every read is noted.
        let (table, meta, noted) = (lua.create_table()?, lua.create_table()?, read.clone());
        let index = move |lua: &Lua, (_, name): (Value, Value)| -> mlua::Result<Value> {
            let value: Value = values.raw_get(&name)?;
            if let Value::String(name) = &name {
                let name = name.to_string_lossy();
                if declared && value.is_nil() {
                    return Err(fail(lua, NAME, format!("the algorithm declares no option `{name}`")));
                }
                noted.borrow_mut().insert(name);
            }
            Ok(value)
        };
        meta.raw_set("__index", lua.create_function(index)?)?;
        meta.raw_set("__metatable", false)?;
        table.set_metatable(Some(meta))?;
        table.set_readonly(true);
        let batch = lua.create_userdata(TracedBatch(graph.clone()))?;
        Ok(Self { graph, must_read: Vec::new(), read, arguments: (batch, table) })
    }

    /// The graph of the function's result.
    ///
    /// # Errors
    /// [`Kind::Script`] at the function: it returned no loss, or one without a gradient, or does
    /// not read an option.
    pub fn finish(self, function: &Function, returned: &Value) -> Result<LossGraph, Error> {
        let here = definition(function).unwrap_or_default();
        let refuse = |message: String, hint: &str| {
            let error = Error::new(Kind::Script, message).hint(hint.to_owned());
            Err(if here.is_empty() { error } else { error.at(here.clone()) })
        };
        let node =
            returned.as_userdata().and_then(|data| data.borrow::<Expression>().ok().map(|expression| expression.node));
        let Some(result) = node else {
            let got = if returned.is_nil() { "nothing".to_owned() } else { kind(returned) };
            return refuse(
                format!("loss returned {got}; it must return a tensor of its batch"),
                "a loss for each token, or one number such as b:token_mean(x) (docs/guide/your-own-algorithm.md)",
            );
        };
        let mut graph = self.graph.take();
        if graph.nodes[result].shape == Shape::Booleans {
            return refuse("loss returned booleans".to_owned(), "convert them with b:where(x, 1, 0)");
        }
        (graph.result, graph.location) = (result, here.clone());
        if !graph.has_gradient() {
            return refuse(
                "the loss has no gradient: it does not depend on b.logp or b.entropy".to_owned(),
                "detach and comparisons stop gradients",
            );
        }
        if let Some(location) = graph.stray_covariance() {
            let error = Error::new(Kind::Script, "loss: a covariance is used outside of b:largest and b:draw");
            let hint = "its means are those of the whole mini-batch, which a micro-batch does not have";
            return Err(error.at(location.to_owned()).hint(hint));
        }
        let read = self.read.borrow();
        if let Some(name) = self.must_read.iter().find(|name| !read.contains(*name)) {
            let hint = suggest(name, read.iter().map(String::as_str));
            return refuse(format!("the option `{name}` is set, and the function `loss` does not read it"), &hint);
        }
        Ok(graph)
    }
}

pub fn trace(lua: &Lua, function: &Function, options: &Json) -> mlua::Result<LossGraph> {
    let trace = Trace::new(lua, options)?;
    let returned = function.call::<Value>(trace.arguments.clone())?;
    trace.finish(function, &returned).map_err(raise)
}

/// A value of the graph.
struct Expression {
    graph: SharedGraph,
    node: usize,
}

fn push(lua: &Lua, graph: &SharedGraph, what: &str, op: Op) -> mlua::Result<Expression> {
    let pushed = graph.borrow_mut().push(op, location(lua).unwrap_or_default());
    let node = pushed.map_err(|why| fail(lua, NAME, format!("`{what}` {why}")))?;
    Ok(Expression { graph: graph.clone(), node })
}

/// A number or an expression of the same batch.
fn operand(lua: &Lua, graph: &SharedGraph, what: &str, value: &Value) -> mlua::Result<Operand> {
    match value {
        Value::Integer(number) => Ok(Operand::Number(*number as f64)),
        Value::Number(number) => Ok(Operand::Number(*number)),
        Value::UserData(data) if data.is::<Expression>() => {
            let expression = data.borrow::<Expression>()?;
            if Rc::ptr_eq(&expression.graph, graph) {
                return Ok(Operand::Node(expression.node));
            }
            Err(fail(lua, NAME, format!("`{what}` got a tensor of another batch")))
        }
        other => Err(fail(lua, NAME, format!("`{what}` takes numbers and tensors of the batch, got {}", kind(other)))),
    }
}

fn number(lua: &Lua, what: &str, value: &Value) -> mlua::Result<Option<f64>> {
    match value {
        Value::Nil => Ok(None),
        Value::Integer(number) => Ok(Some(*number as f64)),
        Value::Number(number) => Ok(Some(*number)),
        other => Err(fail(lua, NAME, format!("`{what}` takes numbers, got {}", kind(other)))),
    }
}

/// A unit by name; the default is `default_value`.
fn over(lua: &Lua, what: &str, value: &Value, default_value: Option<Over>) -> mlua::Result<Over> {
    let names = Over::ALL.map(Over::name);
    let named = |name: &str| Over::ALL.into_iter().find(|over| over.name() == name);
    match (value, default_value) {
        (Value::Nil, Some(default_value)) => Ok(default_value),
        (Value::String(name), _) => named(&name.to_string_lossy()).ok_or_else(|| {
            let error = misuse(lua, &format!("{NAME}: `{what}` takes one of {}", names.join(", ")));
            raise(error.hint(suggest(&name.to_string_lossy(), names)))
        }),
        (Value::Nil, None) => {
            let error =
                misuse(lua, &format!("{NAME}: `{what}` takes one of {}: x:{what}(\"trajectory\")", names.join(", ")));
            Err(raise(error.hint("sums and means over the mini-batch are b:sum(x), b:token_mean(x), b:seq_mean(x)")))
        }
        (other, _) => Err(fail(lua, NAME, format!("`{what}` takes one of {}, got {}", names.join(", "), kind(other)))),
    }
}

const BINARY: [(&str, Binary); 10] = [
    ("min", Binary::Min),
    ("max", Binary::Max),
    ("lt", Binary::Lt),
    ("le", Binary::Le),
    ("gt", Binary::Gt),
    ("ge", Binary::Ge),
    ("eq", Binary::Eq),
    ("ne", Binary::Ne),
    ("logical_and", Binary::And),
    ("logical_or", Binary::Or),
];

const ARITHMETIC: [(MetaMethod, &str, Binary); 4] = [
    (MetaMethod::Add, "+", Binary::Add),
    (MetaMethod::Sub, "-", Binary::Sub),
    (MetaMethod::Mul, "*", Binary::Mul),
    (MetaMethod::Div, "/", Binary::Div),
];

impl UserData for Expression {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        for function in Unary::ALL {
            methods.add_method(function.name(), move |lua, this, ()| {
                push(lua, &this.graph, function.name(), Op::Unary(function, Operand::Node(this.node)))
            });
        }
        for (name, function) in BINARY {
            methods.add_method(name, move |lua, this, other: Value| {
                let other = operand(lua, &this.graph, name, &other)?;
                push(lua, &this.graph, name, Op::Binary(function, Operand::Node(this.node), other))
            });
        }
        methods.add_method("logical_not", |lua, this, ()| {
            push(lua, &this.graph, "logical_not", Op::Not(Operand::Node(this.node)))
        });
        methods.add_method("clamp", |lua, this, (low, high): (Value, Value)| {
            let (low, high) = (number(lua, "clamp", &low)?, number(lua, "clamp", &high)?);
            if low.is_none() && high.is_none() {
                return Err(fail(lua, NAME, "`clamp` takes a lower bound, an upper bound (nil for none), or both"));
            }
            push(lua, &this.graph, "clamp", Op::Clamp(Operand::Node(this.node), low, high))
        });
        methods.add_method("sum", |lua, this, unit: Value| {
            let unit = over(lua, "sum", &unit, None)?;
            push(lua, &this.graph, "sum", Op::SumOver(Operand::Node(this.node), unit))
        });
        methods.add_method("mean", |lua, this, unit: Value| {
            let unit = over(lua, "mean", &unit, None)?;
            push(lua, &this.graph, "mean", Op::MeanOver(Operand::Node(this.node), unit))
        });
        for (method, sign, function) in ARITHMETIC {
            methods.add_meta_function(method, move |lua, (a, b): (Value, Value)| {
                let graph = graph_of(lua, sign, [&a, &b])?;
                let (a, b) = (operand(lua, &graph, sign, &a)?, operand(lua, &graph, sign, &b)?);
                push(lua, &graph, sign, Op::Binary(function, a, b))
            });
        }
        methods.add_meta_function(MetaMethod::Pow, |lua, (base, exponent): (Value, Value)| {
            let graph = graph_of(lua, "^", [&base, &exponent])?;
            let base = operand(lua, &graph, "^", &base)?;
            match number(lua, "the exponent of ^", &exponent)? {
                Some(exponent) if matches!(base, Operand::Node(_)) => push(lua, &graph, "^", Op::Power(base, exponent)),
                _ => Err(fail(lua, NAME, "`^` takes a tensor and a number")),
            }
        });
        methods.add_meta_method(MetaMethod::Unm, |lua, this, ()| {
            push(lua, &this.graph, "-", Op::Unary(Unary::Neg, Operand::Node(this.node)))
        });
        for (method, instead) in [(MetaMethod::Lt, "lt"), (MetaMethod::Le, "le"), (MetaMethod::Eq, "eq")] {
            methods.add_meta_function(method, move |lua, _: (Value, Value)| -> mlua::Result<bool> {
                let error = misuse(lua, &format!("{NAME}: Lua's comparisons return one boolean, not one per token"));
                Err(raise(
                    error.hint(format!("write x:{instead}(y), or gt, ge, ne; choose with b:where(condition, x, y)")),
                ))
            });
        }
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| {
            Ok(match this.graph.borrow().nodes.get(this.node).map(|node| node.shape) {
                Some(Shape::Total) => "a scalar of the mini-batch",
                Some(Shape::Booleans) => "a boolean per token",
                _ => "a number for each token",
            })
        });
        methods.add_meta_method(MetaMethod::Index, |lua, _, name: Value| -> mlua::Result<Value> {
            let more = ["logical_not", "clamp", "sum", "mean"];
            let methods = Unary::NAMES.into_iter().chain(BINARY.map(|(name, _)| name)).chain(more);
            let name = name.to_string()?;
            let error = misuse(lua, &format!("{NAME}: a tensor has no method `{name}`"));
            Err(raise(error.hint(suggest(&name, methods.collect::<Vec<_>>()))))
        });
    }
}

/// The graph of the operand that is an expression.
fn graph_of(lua: &Lua, what: &str, operands: [&Value; 2]) -> mlua::Result<SharedGraph> {
    for value in operands {
        if let Value::UserData(data) = value
            && data.is::<Expression>()
        {
            return Ok(data.borrow::<Expression>()?.graph.clone());
        }
    }
    Err(fail(lua, NAME, format!("`{what}` needs a tensor")))
}

/// The batch: its tensors by name, and reductions over the mini-batch.
struct TracedBatch(SharedGraph);

impl UserData for TracedBatch {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("token_mean", |lua, this, x: Value| {
            let x = operand(lua, &this.0, "token_mean", &x)?;
            push(lua, &this.0, "token_mean", Op::Total(x, LossAgg::TokenMean, Over::Trajectory))
        });
        methods.add_method("seq_mean", |lua, this, (x, unit): (Value, Value)| {
            let x = operand(lua, &this.0, "seq_mean", &x)?;
            let unit = over(lua, "seq_mean", &unit, Some(Over::Trajectory))?;
            push(lua, &this.0, "seq_mean", Op::Total(x, LossAgg::SeqMeanTokenMean, unit))
        });
        methods.add_method("aggregate", |lua, this, (x, way, unit): (Value, Value, Value)| {
            let x = operand(lua, &this.0, "aggregate", &x)?;
            let unit = over(lua, "aggregate", &unit, Some(Over::Trajectory))?;
            let way = way.as_string().map(mlua::LuaString::to_string_lossy).unwrap_or_default();
            let ways = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"];
            let agg: LossAgg = serde_json::from_value(Json::from(way.as_str())).map_err(|_| {
                let error = misuse(lua, &format!("{NAME}: `aggregate` takes one of {}", ways.join(", ")));
                raise(error.hint(suggest(&way, ways)))
            })?;
            push(lua, &this.0, "aggregate", Op::Total(x, agg, unit))
        });
        methods.add_method("sum", |lua, this, x: Value| {
            let x = operand(lua, &this.0, "sum", &x)?;
            push(lua, &this.0, "sum", Op::Sum(x))
        });
        methods.add_method("count", |lua, this, unit: Value| {
            let unit = over(lua, "count", &unit, None)?;
            push(lua, &this.0, "count", Op::Count(unit))
        });
        methods.add_method("covariance", |lua, this, (x, y): (Value, Value)| {
            let get = |value: &Value| operand(lua, &this.0, "covariance", value);
            let op = Op::Covariance(get(&x)?, get(&y)?);
            push(lua, &this.0, "covariance", op)
        });
        methods.add_method("largest", |lua, this, (x, share): (Value, Value)| {
            let x = operand(lua, &this.0, "largest", &x)?;
            let share = number(lua, "largest", &share)?.unwrap_or(f64::NAN);
            push(lua, &this.0, "largest", Op::Largest(x, share))
        });
        methods.add_method("draw", |lua, this, (condition, share, seed): (Value, Value, Value)| {
            let condition = operand(lua, &this.0, "draw", &condition)?;
            let share = number(lua, "draw", &share)?.unwrap_or(f64::NAN);
            let seed = number(lua, "draw", &seed)?.unwrap_or(0.0);
            push(lua, &this.0, "draw", Op::Draw(condition, share, seed as u64))
        });
        methods.add_method("where", |lua, this, (condition, a, b): (Value, Value, Value)| {
            let get = |value: &Value| operand(lua, &this.0, "where", value);
            let op = Op::Where(get(&condition)?, get(&a)?, get(&b)?);
            push(lua, &this.0, "where", op)
        });
        methods.add_method("log", |lua, this, (name, x): (Value, Value)| {
            let name = name.as_string().map(mlua::LuaString::to_string_lossy).unwrap_or_default();
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
                return Err(fail(lua, NAME, "`log` takes a name of letters, digits, _ - and ., and a tensor"));
            }
            let Operand::Node(node) = operand(lua, &this.0, "log", &x)? else {
                return Err(fail(lua, NAME, "`log` takes a tensor of the batch, got a number"));
            };
            let mut graph = this.0.borrow_mut();
            if graph.logged.iter().any(|(metric, _)| *metric == name) {
                return Err(fail(lua, NAME, format!("`{name}` is logged twice")));
            }
            if graph.logged.len() == MOST_LOGGED {
                return Err(fail(lua, NAME, format!("a loss logs at most {MOST_LOGGED} values")));
            }
            graph.logged.push((name, node));
            Ok(())
        });
        methods.add_method("ratio_stats", |lua, this, (ratio, low, high): (Value, Value, Value)| {
            let get = |value: &Value| operand(lua, &this.0, "ratio_stats", value);
            let is = |node: usize, shape: Shape| this.0.borrow().nodes[node].shape == shape;
            let booleans = |node: usize| is(node, Shape::Booleans);
            let clipped = match (&low, &high) {
                (Value::Nil, Value::Nil) => Some(Clipped::No),
                _ => match (get(&low)?, get(&high)?) {
                    (Operand::Number(low), Operand::Number(high)) => Some(Clipped::Range { low, high }),
                    (Operand::Node(low), Operand::Node(high)) if booleans(low) && booleans(high) => {
                        Some(Clipped::Tokens { low, high })
                    }
                    _ => None,
                },
            };
            match (get(&ratio)?, clipped) {
                (Operand::Node(node), Some(clipped)) if is(node, Shape::Tokens) => {
                    this.0.borrow_mut().ratio = Some(RatioUse { node, clipped });
                    Ok(())
                }
                _ => Err(fail(lua, NAME, RATIO_STATS)),
            }
        });
        methods.add_meta_method(MetaMethod::Index, |lua, this, name: Value| {
            let name = name.to_string()?;
            if let Some(input) = Input::ALL.into_iter().find(|input| input.name() == name) {
                return push(lua, &this.0, &name, Op::Input(input));
            }
            let error = misuse(lua, &format!("{NAME}: the batch has no tensor `{name}`"));
            let functions = [
                "token_mean",
                "seq_mean",
                "aggregate",
                "sum",
                "count",
                "where",
                "log",
                "ratio_stats",
                "covariance",
                "largest",
                "draw",
            ];
            Err(raise(error.hint(match name.as_str() {
                "mask" => "there is none: the batch contains only sampled tokens".to_owned(),
                _ => suggest(&name, Input::ALL.map(Input::name).into_iter().chain(functions).collect::<Vec<_>>()),
            })))
        });
    }
}
