//! The two sets of tasks of a recipe, and how the ids of trajectories name them.

use crate::schema::names;

names! {
    /// The dataset of the recipe to which a task belongs.
    #[derive(Default, Hash, PartialOrd, Ord)]
    pub enum Split {
        #[default]
        Train = "train",
        Eval = "eval",
    }
}

impl Split {
    /// The split and the training step that the id of a trajectory begins with: `12-3-0`, or
    /// `eval-12-3-0` for an evaluation after 12 steps. `None` for an id of another form.
    pub fn of_id(id: &str) -> Option<(Self, u64)> {
        let (split, rest) = match id.strip_prefix("eval-") {
            Some(rest) => (Self::Eval, rest),
            None => (Self::Train, id),
        };
        Some((split, rest.split('-').next()?.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_name_their_split_and_step() {
        assert_eq!(Split::of_id("12-3-0"), Some((Split::Train, 12)));
        assert_eq!(Split::of_id("eval-0-17-0"), Some((Split::Eval, 0)));
        for other in ["", "eval", "eval-", "x-1", "-1-0"] {
            assert_eq!(Split::of_id(other), None, "{other}");
        }
    }
}
