//! The parts of an expression, and the changes of its text.

/// A part of an expression.
#[derive(Clone, Copy)]
pub(super) struct ExpressionNode {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: NodeKind,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum NodeKind {
    Text,
    /// A number, true, false or none.
    Scalar,
    /// A tuple, a list or a dictionary in brackets.
    Items,
    /// An expression of constants.
    Constant,
    Other,
}

impl ExpressionNode {
    pub(super) fn is_constant(&self) -> bool {
        self.kind != NodeKind::Other
    }

    /// Whether it is a text, a number, true, false or none.
    pub(super) fn is_simple(&self) -> bool {
        matches!(self.kind, NodeKind::Text | NodeKind::Scalar)
    }
}

/// A change of the text. At one place, ends of calls come before beginnings, inner ends first and
/// outer beginnings first.
struct Edit {
    at: usize,
    order: EvaluationOrder,
    /// Bytes that it replaces.
    removed: usize,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvaluationOrder {
    End(usize),
    Begin(std::cmp::Reverse<usize>),
    Replace,
}

/// The changes of a text.
#[derive(Default)]
pub(super) struct Edits(Vec<Edit>);

impl Edits {
    /// The changed text.
    pub(super) fn written(mut self, original: &str) -> String {
        self.0.sort_by_key(|edit| (edit.at, edit.order));
        let added: usize = self.0.iter().map(|edit| edit.text.len()).sum();
        let (mut out, mut copied) = (String::with_capacity(original.len() + added), 0);
        for edit in &self.0 {
            out.push_str(&original[copied..edit.at]);
            out.push_str(&edit.text);
            copied = edit.at + edit.removed;
        }
        out + &original[copied..]
    }

    /// Replaces the character at a place.
    pub(super) fn replace(&mut self, at: usize, text: String) {
        self.0.push(Edit { at, order: EvaluationOrder::Replace, removed: 1, text });
    }

    /// Puts a part into brackets or a call.
    pub(super) fn wrap(&mut self, node: ExpressionNode, before: &str, after: &str) {
        let count = self.0.len();
        let begin = EvaluationOrder::Begin(std::cmp::Reverse(count));
        self.0.push(Edit { at: node.start, order: begin, removed: 0, text: before.to_owned() });
        self.0.push(Edit { at: node.end, order: EvaluationOrder::End(count), removed: 0, text: after.to_owned() });
    }

    /// Puts a part that may be a list into the call of a filter.
    pub(super) fn mark(&mut self, node: ExpressionNode, filter: &str) {
        if !node.is_simple() {
            self.wrap(node, "(", &format!(")|{filter}"));
        }
    }

    /// Replaces the sign or word between two operands by a call of a filter.
    pub(super) fn call(
        &mut self,
        left: ExpressionNode,
        sign: (usize, usize),
        right: ExpressionNode,
        before: &str,
        filter: &str,
    ) {
        self.wrap(ExpressionNode { end: right.end, ..left }, &format!("{before}("), ")");
        let text = format!(")|{filter}(");
        self.0.push(Edit { at: sign.0, order: EvaluationOrder::Replace, removed: sign.1 - sign.0, text });
    }
}
