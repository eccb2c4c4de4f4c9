//! The names of functions and constants.

use super::expr::{Constant, UnaryFunction};

/// The syntax after a name.
#[derive(Clone, Copy)]
pub(super) enum NameSyntax {
    Constant(Constant),
    Function(UnaryFunction),
}

/// Looks up a word or command that names a constant or a function.
pub(super) fn named(name: &str) -> Option<NameSyntax> {
    use UnaryFunction::{
        Arccos, Arcsin, Arctan, Ceiling, Cos, Cosh, Cot, Csc, Exp, Floor, Ln, Log, Sec, Sin, Sinh, Tan, Tanh,
    };
    Some(NameSyntax::Function(match name {
        "pi" | "Pi" => return Some(NameSyntax::Constant(Constant::Pi)),
        "infty" | "infinity" | "inf" | "oo" => return Some(NameSyntax::Constant(Constant::Infinity)),
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
        "sqrt" => UnaryFunction::Root,
        "abs" => UnaryFunction::Abs,
        "floor" => Floor,
        "ceil" => Ceiling,
        "binom" => UnaryFunction::Binomial,
        _ => return None,
    }))
}
