//! The asymmetric critic: what the critic alone is shown of a task, such as its answer, stands before its rows. The policy never
//! sees it, so a value may depend on it and an action may not (Pinto et al., arXiv:1710.06542).

use serde_json::Value;

use super::lesson::Targets;
use crate::config::CriticSettings;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::{Support, Trajectory};
use crate::rl::pack::Row;
use crate::text::Tokenizer;

/// The tokens that stand before the critic's rows, for each trajectory; empty where `trainer.critic.privileged` is.
///
/// # Errors
/// `Kind::Data` names the training row that lacks a column, or whose text is too long.
pub(super) fn prefixes(
    settings: &CriticSettings,
    trajectories: &[Trajectory],
    tokenizer: &Tokenizer,
) -> Result<Vec<Vec<u32>>> {
    if settings.privileged.is_empty() {
        return Ok(Vec::new());
    }
    let prefix = |trajectory: &Trajectory| {
        let at = |error: Error| error.at(format!("training row {}", trajectory.task_index + 1));
        let ids = tokenizer.encode(&fill(&settings.privileged, &trajectory.task).map_err(at)?)?;
        if ids.len() > settings.privileged_tokens {
            let message = format!(
                "what trainer.critic.privileged shows of a task has {} tokens, and trainer.critic.privileged_tokens is {}",
                ids.len(),
                settings.privileged_tokens
            );
            return Err(at(Error::new(Kind::Data, message).hint("raise the limit, or show less")));
        }
        Ok(ids)
    };
    trajectories.iter().map(prefix).collect()
}

/// `template` with `{column}` replaced by that column of the row: text as it is, anything else as JSON.
fn fill(template: &str, row: &Value) -> Result<String> {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let name = after.split_once('}').map(|(name, _)| name);
        let Some(name) = name.filter(|name| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_'))
        else {
            filled.push('{');
            rest = after;
            continue;
        };
        match row.get(name) {
            Some(Value::String(text)) => filled.push_str(text),
            Some(Value::Null) | None => {
                let columns = row.as_object().map(|row| row.keys().map(String::as_str).collect::<Vec<_>>());
                let message = format!("trainer.critic.privileged shows the column `{name}`, which a row does not have");
                return Err(Error::new(Kind::Data, message).hint(suggest(name, columns.unwrap_or_default())));
            }
            Some(other) => filled.push_str(&other.to_string()),
        }
        rest = &after[name.len() + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Rows as the critic reads them, at most `longest` tokens each.
///
/// # Errors
/// `Kind::Data` for a row that the prefix makes too long.
pub(super) fn shown(rows: &[Row], prefixes: &[Vec<u32>], longest: usize) -> Result<Vec<Row>> {
    let one = |row: &Row| {
        let Some(prefix) = prefixes.get(row.trajectory).filter(|prefix| !prefix.is_empty()) else {
            return Ok(row.clone());
        };
        let (more, first) = (prefix.len(), row.steps.first().copied().unwrap_or(0));
        if more + row.len() > longest {
            let message = format!(
                "the critic reads {} tokens of trainer.critic.privileged before a row of {}, and its model takes {longest}",
                more,
                row.len()
            );
            return Err(Error::new(Kind::Data, message)
                .in_trajectories(vec![row.trajectory as u64], None)
                .hint("lower policy.max_context, or show the critic less"));
        }
        Ok(Row {
            ids: [prefix, row.ids.as_slice()].concat(),
            loss_mask: [&vec![false; more], row.loss_mask.as_slice()].concat(),
            logprobs: [&vec![0.0; more], row.logprobs.as_slice()].concat(),
            steps: [&vec![first; more], row.steps.as_slice()].concat(),
            // Values are of states: what a token was drawn from does not matter.
            support: Support::default(),
            trajectory: row.trajectory,
        })
    };
    rows.iter().map(one).collect()
}

/// Targets of rows, moved to where [`shown`] puts their tokens.
pub(super) fn moved(targets: &Targets, rows: &[Row], prefixes: &[Vec<u32>]) -> Targets {
    fn pad<T: Clone>(lists: &[Vec<T>], fill: &T, rows: &[Row], prefixes: &[Vec<u32>]) -> Vec<Vec<T>> {
        let more = |row: &Row| prefixes.get(row.trajectory).map_or(0, Vec::len);
        let one = |(list, row): (&Vec<T>, &Row)| [vec![fill.clone(); more(row)].as_slice(), list.as_slice()].concat();
        lists.iter().zip(rows).map(one).collect()
    }
    Targets {
        returns: pad(&targets.returns, &0.0, rows, prefixes),
        asked: pad(&targets.asked, &false, rows, prefixes),
        values: pad(&targets.values, &0.0, rows, prefixes),
        prefixes: targets.prefixes.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn columns_fill_the_template() {
        let row = json!({ "answer": "42", "steps": [1, 2], "none": null });
        assert_eq!(fill("A: {answer}, {steps} {} {x y}", &row).unwrap(), "A: 42, [1,2] {} {x y}");
        let error = fill("{answr}", &row).unwrap_err();
        assert_eq!(error.kind, Kind::Data);
        assert!(error.to_string().contains("column `answr`") && error.to_string().contains("answer"), "{error}");
        assert!(fill("{none}", &row).is_err());
    }

    #[test]
    fn rows_and_targets_move_together() {
        let row = |trajectory: usize| Row {
            ids: vec![7, 8, 9],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0, -1.0, -2.0],
            steps: vec![4, 4, 5],
            support: Support::default(),
            trajectory,
        };
        let rows = [row(0), row(1)];
        let prefixes = vec![vec![1, 2], vec![]];
        let own = shown(&rows, &prefixes, 5).unwrap();
        assert_eq!((own[0].ids.clone(), own[1].ids.clone()), (vec![1, 2, 7, 8, 9], vec![7, 8, 9]));
        assert_eq!(own[0].loss_mask, [false, false, false, true, true]);
        assert_eq!((own[0].steps.clone(), own[0].len()), (vec![4, 4, 4, 4, 5], own[0].logprobs.len()));
        let targets = Targets {
            returns: vec![vec![0.0, 3.0, 0.0]; 2],
            asked: vec![vec![false, true, false]; 2],
            values: vec![vec![0.0, 0.5, 0.0]; 2],
            prefixes: prefixes.clone(),
        };
        let moved = moved(&targets, &rows, &prefixes);
        assert_eq!((moved.returns[0][3], moved.returns[1][1], moved.count()), (3.0, 3.0, 2));
        assert!(moved.asked[0][3] && !moved.asked[0][1]);
        assert!(shown(&rows, &prefixes, 4).unwrap_err().message.contains("2 tokens"));
    }
}
