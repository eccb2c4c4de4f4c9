//! Conversations of a dataset as rows of tokens for supervised training.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::config::{Overlong, Sft};
use crate::error::{Error, Kind, Result};
use crate::mdp::Demonstration;
use crate::rl::pack::Row;
use crate::script::{Split, Worker};
use crate::telemetry::Reporter;
use crate::text::Renderer;
use crate::vision::{Images, store_images};

/// Reads row `index` (from 0) as a conversation. Its images are stored in `images`.
///
/// # Errors
/// `Kind::Data` names the file and line of a row that is not a conversation.
pub(crate) fn read(worker: &Worker, split: Split, index: u64, images: Option<&Images>) -> Result<Demonstration> {
    let mut row = worker.row(split, index)?;
    with_images(&mut row, images).map_err(|error| worker.about_row(split, index, error))?;
    Demonstration::read(&row).map_err(|invalid| {
        worker
            .about_row(split, index, invalid.of_row())
            .hint("docs/guide/sft.md lists the formats of rows; `columns` of the dataset renames columns")
    })
}

/// Stores the images and videos of a row with `messages`; a model that reads text only has no
/// `images`.
///
/// # Errors
/// `Kind::Data` for an image that can't be read, and for any image if the model reads text only.
pub(crate) fn with_images(row: &mut Json, images: Option<&Images>) -> Result<()> {
    let Some(images) = images else {
        let messages = row["messages"].as_array().into_iter().flatten();
        let shows = |name: &str| {
            let has_column = [name.to_owned(), format!("{name}s")].iter().any(|column| !row[column].is_null());
            let mark = format!("<{name}>");
            messages.clone().any(|message| match &message["content"] {
                Json::String(text) => has_column && text.contains(&mark),
                content => content
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|part| part["type"].as_str().is_some_and(|kind| kind.trim_end_matches("_url") == name)),
            })
        };
        let media = if shows("image") {
            "an image"
        } else if shows("video") {
            "a video"
        } else {
            return Ok(());
        };
        let message = format!("the row has {media}, and the model reads text only");
        return Err(Error::new(Kind::Data, message).hint("use a vision model"));
    };
    store_images(row, images)
}

/// Converts conversations to rows of tokens, with one renderer per tool format over the same
/// tokenizer.
pub(crate) struct Samples<'a> {
    worker: &'a Worker,
    pub(crate) base: Renderer,
    default: String,
    loaded: HashMap<String, Arc<Renderer>>,
    /// Maximum tokens of a row.
    pub(crate) longest: usize,
    overlong: Overlong,
    /// Number of longer conversations so far.
    pub(crate) too_long: u64,
    /// The warning about tools of rows that are in no prompt, until it is printed.
    hidden_tools: Hidden,
}

#[derive(Default)]
enum Hidden {
    #[default]
    None,
    Found(String),
    Reported,
}

impl<'a> Samples<'a> {
    /// `base` is a renderer of any format; `default` is the format of rows that name none.
    pub(crate) fn new(worker: &'a Worker, base: Renderer, default: &str, sft: &Sft, context: usize) -> Self {
        let longest = if sft.max_length == 0 { context } else { sft.max_length.min(context) };
        let (default, loaded) = (default.to_owned(), HashMap::new());
        Self { worker, base, default, loaded, longest, overlong: sft.overlong, too_long: 0, hidden_tools: Hidden::None }
    }

    /// Warns once of tools that are in no prompt.
    pub(crate) fn report_hidden_tools(&mut self, reporter: &Reporter) {
        if let Hidden::Found(message) = &self.hidden_tools {
            reporter.warn(message);
            self.hidden_tools = Hidden::Reported;
        }
    }

    fn renderer(&mut self, format: Option<&str>) -> Result<Arc<Renderer>> {
        let name = format.unwrap_or(&self.default).to_owned();
        if let Some(renderer) = self.loaded.get(&name) {
            return Ok(Arc::clone(renderer));
        }
        let renderer = Arc::new(self.base.with_format(&self.worker.format(&name)?)?);
        self.loaded.insert(name, Arc::clone(&renderer));
        Ok(renderer)
    }

    /// Row `index` of the split as tokens; `None` if it is left out because it is too long.
    ///
    /// # Errors
    /// `Kind::Data` names the file and line of a row that is not a conversation, or that is too
    /// long if `trainer.overlong` is "error".
    pub(crate) fn row(&mut self, split: Split, index: u64) -> Result<Option<Row>> {
        let demonstration = read(self.worker, split, index, self.base.images().map(|images| &**images))?;
        let renderer = self.renderer(demonstration.format.as_deref())?;
        if matches!(self.hidden_tools, Hidden::None)
            && let Some(message) = renderer.hidden_tools(&demonstration.tools)
        {
            self.hidden_tools = Hidden::Found(message);
        }
        let mut row = row(&demonstration, &renderer)?;
        let (length, longest) = (row.len(), self.longest);
        if length > longest {
            self.too_long += 1;
            match self.overlong {
                Overlong::Error => {
                    let message = format!("the conversation has {length} tokens, and at most {longest} fit");
                    let error = self.worker.about_row(split, index, Error::new(Kind::Data, message));
                    let key = self.worker.script.full_key("trainer.overlong");
                    return Err(
                        error.hint(format!("{key}=skip leaves such rows out, {key}=truncate cuts their ends off"))
                    );
                }
                Overlong::Skip => return Ok(None),
                Overlong::Truncate => {
                    row.ids.truncate(longest);
                    row.loss_mask.truncate(longest);
                    row.logprobs.truncate(longest);
                    row.steps.truncate(longest);
                    // No token is left to train on.
                    if row.sampled() == 0 {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(row))
    }
}

/// The tokens of a conversation, with the loss mask of the messages that are trained.
pub(crate) fn row(demonstration: &Demonstration, renderer: &Renderer) -> Result<Row> {
    let Demonstration { messages, tools, trained, .. } = demonstration;
    let made = renderer.supervised_where(messages, tools, trained)?;
    Ok(Row {
        logprobs: vec![0.0; made.ids.len()],
        steps: vec![0; made.ids.len()],
        ids: made.ids,
        loss_mask: made.mask,
        ..Row::default()
    })
}
