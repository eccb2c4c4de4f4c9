//! The reasons why an operation of a loss is refused.

/// Maximum number of nodes; stops a Lua loss that builds values in an endless loop.
pub(super) const MAX_NODES: usize = 10_000;

/// The reason why an operation is refused. Displayed after the name of the function, for the author
/// of the Lua function.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidOp {
    /// Booleans where numbers are needed.
    #[error("takes numbers, got booleans: convert them with b:where(x, 1, 0)")]
    Booleans,
    #[error("takes booleans, such as x:lt(0)")]
    NotBooleans,
    /// A scalar of the mini-batch in anything but a weighted sum of scalars.
    #[error(
        "takes no scalar of the mini-batch: scalars can only be added to each other and multiplied by numbers, \
             because everything else would depend on the split into micro-batches"
    )]
    Scalar,
    /// A constant (`number`, `bound`) that is NaN or infinite.
    #[error("got the {what} {number}, which is not finite")]
    NotFinite { what: &'static str, number: f64 },
    /// Bounds of `clamp` in the wrong order.
    #[error("got a lower bound of {low} above an upper bound of {high}")]
    Bounds { low: f64, high: f64 },
    /// A share of tokens that is not from 0 to 1.
    #[error("got the share {share}, which is not from 0 to 1")]
    Share { share: f64 },
    /// More than one selection.
    #[error("is the second selection of tokens: a loss has one at most")]
    SecondSelection,
    /// More than [`MAX_NODES`].
    #[error("exceeds the limit of {MAX_NODES} values per loss")]
    TooManyNodes,
}
