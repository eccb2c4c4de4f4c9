//! The names of functions and constants.

use super::expr::{Constant, Function};

/// The syntax after a name.
#[derive(Clone, Copy)]
pub(super) enum Named {
    Constant(Constant),
    Function(Function),
}

/// Looks up a word or command that names a constant or a function.
pub(super) fn named(name: &str) -> Option<Named> {
    use Function::{
        Arccos, Arcsin, Arctan, Ceiling, Cos, Cosh, Cot, Csc, Exp, Floor, Ln, Log, Sec, Sin, Sinh, Tan, Tanh,
    };
    Some(Named::Function(match name {
        "pi" | "Pi" => return Some(Named::Constant(Constant::Pi)),
        "infty" | "infinity" | "inf" | "oo" => return Some(Named::Constant(Constant::Infinity)),
        "sin" => Sin,
        "cos" => Cos,
        "tan" => Tan,
        "cot" => Cot,
        "sec" => Sec,
        "csc" => Csc,
        "arcsin" | "asin" => Arcsin,
        "arccos" | "acos" => Arccos,
        "arctan" | "atan" => Arctan,
        "sinh" => Sinh,
        "cosh" => Cosh,
        "tanh" => Tanh,
        "ln" => Ln,
        "log" => Log,
        "exp" => Exp,
        "sqrt" => Function::Root,
        "abs" => Function::Abs,
        "floor" => Floor,
        "ceil" => Ceiling,
        "binom" => Function::Binomial,
        _ => return None,
    }))
}
