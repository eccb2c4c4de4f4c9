//! Mistral 7B and similar models (arXiv:2310.06825): Llama's layers, each with the same sliding
//! window if there is one; and Ministral, where `layer_types` can select the layers with the
//! window.

use super::{Architecture, Config, Defaults, Fields, Result, same_window, uniform, windows};

pub(super) fn read(architecture: Architecture, fields: &mut Fields) -> Result<Config> {
    let mut config = uniform(architecture, fields, &Defaults { max_position: 131_072, ..Defaults::default() })?;
    // Later releases have null: no window. A file without the field has the window of the first
    // release.
    let default = if fields.has("sliding_window") { None } else { Some(4096) };
    let window = fields.optional_size("sliding_window")?.or(default);
    if architecture == Architecture::Mistral {
        same_window(fields, &mut config, window)?;
    } else {
        windows(fields, &mut config, window, |_| window.is_some())?;
    }
    Ok(config)
}
