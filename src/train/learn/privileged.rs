//! The asymmetric critic: text that only the critic reads, such as the answer of a task, is placed
//! before its rows. The policy never reads it, so a value may depend on it and an action may not
//! (Pinto et al., arXiv:1710.06542).

use serde_json::Value;

use crate::config::CriticSettings;
use crate::error::{Error, Kind, Result, suggest};
use crate::mdp::Trajectory;
use crate::rl::pack::Row;
use crate::text::Tokenizer;

/// Text for the critic before the steps of trajectories, as token ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prefixes {
    /// By trajectory: one for all of its steps, or one for each step and one for the next
    /// observation. Empty if there is none.
    of: Vec<Vec<Vec<u32>>>,
}

impl Prefixes {
    fn at(&self, trajectory: usize, step: u32) -> &[u32] {
        let of = self.of.get(trajectory);
        of.and_then(|of| of.get(step as usize).or(of.last())).map_or(&[], Vec::as_slice)
    }
}

/// Text that only the critic reads: `trainer.critic.privileged` filled with columns of the tasks,
/// or the text that the recipe's function `privileged` returned for each step, as recorded in the
/// steps. Empty if there is neither.
///
/// # Errors
/// `Kind::Data` names the training row that lacks a column, or whose text is too long.
pub(crate) fn prefixes(
    settings: &CriticSettings,
    trajectories: &[Trajectory],
    tokenizer: &Tokenizer,
) -> Result<Prefixes> {
    let recorded = |trajectory: &Trajectory| trajectory.steps.iter().any(|step| step.privileged.is_some());
    if settings.privileged.is_empty() && !trajectories.iter().any(recorded) {
        return Ok(Prefixes::default());
    }
    let encode = |text: &str| {
        let ids = tokenizer.encode(text)?;
        if ids.len() > settings.privileged_tokens {
            let message = format!(
                "the text of trainer.critic.privileged for a task has {} tokens, and trainer.critic.privileged_tokens is {}",
                ids.len(),
                settings.privileged_tokens
            );
            return Err(Error::new(Kind::Data, message).hint("raise the limit, or shorten the text"));
        }
        Ok(ids)
    };
    let of = |trajectory: &Trajectory| {
        let prefix = || -> Result<Vec<Vec<u32>>> {
            if !settings.privileged.is_empty() {
                return Ok(vec![encode(&fill(&settings.privileged, &trajectory.task)?)?]);
            }
            texts(trajectory).into_iter().map(encode).collect()
        };
        prefix().map_err(|error| error.at(format!("training row {}", trajectory.task_index + 1)))
    };
    Ok(Prefixes { of: trajectories.iter().map(of).collect::<Result<_>>()? })
}

/// The recorded text of each step, and the text of the next observation. A generated step has the
/// text of the acting step that it belongs to.
fn texts(trajectory: &Trajectory) -> Vec<&str> {
    let steps = &trajectory.steps;
    let text_from =
        |index: usize| steps[index..].iter().find_map(|step| step.privileged.as_deref()).unwrap_or_default();
    let mut all: Vec<&str> = (0..steps.len()).map(text_from).collect();
    all.extend(steps.last().and_then(|last| last.next_privileged.as_deref()));
    all
}

/// `template` with `{column}` replaced by that column of the row: text as it is, anything else as
/// JSON.
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
                let message =
                    format!("trainer.critic.privileged contains the column `{name}`, which a row does not have");
                return Err(Error::new(Kind::Data, message).hint(suggest(name, columns.unwrap_or_default())));
            }
            Some(other) => filled.push_str(&other.to_string()),
        }
        rest = &after[name.len() + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Rows for the critic, and the parts of the given rows that they contain.
#[derive(Debug)]
pub(crate) struct CriticRows {
    pub(crate) rows: Vec<Row>,
    /// For each: the given row, and the number of tokens before it.
    origins: Vec<(usize, usize)>,
}

impl CriticRows {
    /// The given row, and the position in it, of a token of a row for the critic.
    pub(crate) fn place(&self, row: usize, index: usize) -> (usize, usize) {
        let (of, more) = self.origins[row];
        (of, index - more)
    }
}

/// Rows for the critic, at most `longest` tokens each. A row whose steps have different prefixes is
/// computed once per prefix, up to the last token sampled after it.
///
/// # Errors
/// `Kind::Data` for a row that the prefix makes too long.
pub(crate) fn shown(rows: &[Row], prefixes: &Prefixes, longest: usize) -> Result<CriticRows> {
    let mut shown = CriticRows { rows: Vec::with_capacity(rows.len()), origins: Vec::with_capacity(rows.len()) };
    for (index, row) in rows.iter().enumerate() {
        let runs = runs(row, prefixes);
        for (number, run) in runs.iter().enumerate() {
            let begin = if number == 0 { 0 } else { runs[number - 1].end };
            let end = if number + 1 == runs.len() { row.len() } else { run.end };
            shown.rows.push(after_prefix(row, run.prefix, begin..end, longest)?);
            shown.origins.push((index, run.prefix.len()));
        }
    }
    Ok(shown)
}

/// Consecutive sampled tokens of a row with the same prefix.
struct PrefixRun<'a> {
    prefix: &'a [u32],
    /// The index after the last of them.
    end: usize,
}

fn runs<'a>(row: &Row, prefixes: &'a Prefixes) -> Vec<PrefixRun<'a>> {
    let of = |index: usize| prefixes.at(row.trajectory, row.steps[index]);
    let mut runs: Vec<PrefixRun<'a>> = Vec::new();
    for index in (0..row.len()).filter(|&index| row.loss_mask[index]) {
        match runs.last_mut() {
            Some(run) if run.prefix == of(index) => run.end = index + 1,
            _ => runs.push(PrefixRun { prefix: of(index), end: index + 1 }),
        }
    }
    if runs.is_empty() && !row.is_empty() {
        runs.push(PrefixRun { prefix: of(0), end: row.len() });
    }
    runs
}

/// A column shifted by `more` tokens with the value `fill`; empty columns stay empty.
fn shifted<T: Clone>(column: &[T], fill: T, more: usize, end: usize) -> Vec<T> {
    if column.is_empty() {
        return Vec::new();
    }
    [vec![fill; more].as_slice(), &column[..end]].concat()
}

/// A row up to the end of the range `tokens`, after a prefix. Only this range is trained.
fn after_prefix(row: &Row, prefix: &[u32], tokens: std::ops::Range<usize>, longest: usize) -> Result<Row> {
    let (more, end, first) = (prefix.len(), tokens.end, row.steps.first().copied().unwrap_or(0));
    if more > 0 && more + end > longest {
        let message = format!(
            "the critic reads {more} tokens of trainer.critic.privileged before a row of {end}, and the limit of its model is {longest}"
        );
        return Err(Error::new(Kind::Data, message)
            .in_trajectories(vec![row.trajectory as u64], None)
            .hint("lower policy.max_context, or shorten the text for the critic"));
    }
    let counts = |index: usize| tokens.contains(&index) && row.loss_mask[index];
    let mut targets = shifted(&row.targets, false, more, end);
    let loss_mask: Vec<bool> = std::iter::repeat_n(false, more).chain((0..end).map(counts)).collect();
    targets.iter_mut().zip(&loss_mask).for_each(|(target, counts)| *target &= *counts);
    // Values belong to states and do not depend on the support of the tokens.
    Ok(Row {
        ids: [prefix, &row.ids[..end]].concat(),
        loss_mask,
        logprobs: shifted(&row.logprobs, 0.0, more, end),
        steps: shifted(&row.steps, first, more, end),
        trajectory: row.trajectory,
        values: shifted(&row.values, 0.0, more, end),
        returns: shifted(&row.returns, 0.0, more, end),
        targets,
        ..Row::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::train::learn::value::target_count;

    #[test]
    fn columns_fill_the_template_of_privileged_text() {
        let row = json!({ "answer": "42", "steps": [1, 2], "none": null });
        assert_eq!(fill("A: {answer}, {steps} {} {x y}", &row).unwrap(), "A: 42, [1,2] {} {x y}");
        let error = fill("{answr}", &row).unwrap_err();
        assert_eq!(error.kind, Kind::Data);
        assert!(error.to_string().contains("column `answr`") && error.to_string().contains("answer"), "{error}");
        assert!(fill("{none}", &row).is_err());
    }

    fn row(trajectory: usize) -> Row {
        Row {
            ids: vec![7, 8, 9],
            loss_mask: vec![false, true, true],
            logprobs: vec![0.0, -1.0, -2.0],
            steps: vec![4, 4, 5],
            trajectory,
            returns: vec![0.0, 3.0, 5.0],
            targets: vec![false, true, true],
            values: vec![0.0, 0.5, 0.25],
            ..Row::default()
        }
    }

    #[test]
    fn privileged_text_shifts_rows_and_targets() {
        let rows = [row(0), row(1)];
        let prefixes = Prefixes { of: vec![vec![vec![1, 2]], vec![vec![]]] };
        let critic_rows = shown(&rows, &prefixes, 5).unwrap();
        assert_eq!(
            (critic_rows.rows[0].ids.clone(), critic_rows.rows[1].ids.clone()),
            (vec![1, 2, 7, 8, 9], vec![7, 8, 9])
        );
        assert_eq!(critic_rows.rows[0].loss_mask, [false, false, false, true, true]);
        assert_eq!(
            (critic_rows.rows[0].steps.clone(), critic_rows.rows[0].len()),
            (vec![4, 4, 4, 4, 5], critic_rows.rows[0].logprobs.len())
        );
        assert_eq!(
            (critic_rows.rows[0].returns[3], critic_rows.rows[1].returns[1], target_count(&critic_rows.rows)),
            (3.0, 3.0, 4)
        );
        assert!(critic_rows.rows[0].targets[3] && !critic_rows.rows[0].targets[1]);
        assert_eq!(critic_rows.rows[0].values, [0.0, 0.0, 0.0, 0.5, 0.25]);
        assert!(shown(&rows, &prefixes, 4).unwrap_err().message.contains("2 tokens"));
    }

    #[test]
    fn a_row_is_computed_once_for_each_prefix_of_its_steps() {
        let rows = [row(0)];
        let steps = |of: &[&[u32]]| Prefixes { of: vec![of.iter().map(|ids| ids.to_vec()).collect()] };
        // Steps 4 and 5 have different prefixes; steps 0 to 3 are not in this row.
        let prefixes = steps(&[&[], &[], &[], &[], &[1, 2], &[3]]);
        let critic_rows = shown(&rows, &prefixes, 5).unwrap();
        assert_eq!(
            critic_rows.rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>(),
            [vec![1, 2, 7, 8], vec![3, 7, 8, 9]]
        );
        assert_eq!(critic_rows.rows[0].loss_mask, [false, false, false, true]);
        assert_eq!(critic_rows.rows[1].loss_mask, [false, false, false, true]);
        assert_eq!((critic_rows.place(0, 3), critic_rows.place(1, 3)), ((0, 1), (0, 2)));
        assert_eq!(
            (critic_rows.rows[0].returns[3], critic_rows.rows[1].returns[3], target_count(&critic_rows.rows)),
            (3.0, 5.0, 2)
        );
        // Steps with equal texts, such as texts of a template, are computed together.
        let same = shown(&rows, &steps(&[&[6][..]; 6]), 5).unwrap();
        assert_eq!(same.rows, shown(&rows, &steps(&[&[6][..]]), 5).unwrap().rows);
        assert_eq!(same.rows.len(), 1);
    }
}
