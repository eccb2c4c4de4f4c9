//! Conversations to ids and a loss mask for supervised training, in the same pieces as a rollout.

use serde_json::Value;

use super::Renderer;
use super::turns::Next;
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, Role};

/// A conversation to imitate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervised {
    /// `[T]`
    pub ids: Vec<u32>,
    /// `[T]`, true on what the policy would have sampled: replies and their end-of-turn token.
    pub mask: Vec<bool>,
}

impl Renderer {
    /// The ids of a whole conversation and which of them the policy writes: each assistant's content and end-of-turn
    /// token, not the line break behind it; in Retool each piece up to `</code>`, not the interpreter's output.
    pub fn supervised(&self, messages: &[Message], tools: &[Value]) -> Result<Supervised> {
        let pieces = self.pieces(messages, tools, Next::End)?;
        let replies = messages.iter().filter(|message| message.role == Role::Assistant).count();
        let sampled = pieces.0.iter().filter(|piece| piece.sampled).count();
        if replies > 0 && sampled == 0 {
            return Err(Error::new(Kind::Model, "the chat template hides where an assistant's text begins and ends")
                .hint("use a ChatML template (chat_template.jinja in the model directory)"));
        }
        let (ids, mask) = pieces.encode(self.tokenizer())?;
        Ok(Supervised { ids, mask })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::text::testing::{renderer, show};
    use crate::text::{Format, Renderer};

    fn shown(renderer: &Renderer, messages: &[Message]) -> String {
        let Supervised { ids, mask } = renderer.supervised(messages, &[]).unwrap();
        show(renderer, &ids, &mask)
    }

    #[test]
    fn replies_and_their_end_are_learnt_and_nothing_else() {
        let hermes = renderer(Format::Hermes);
        let messages = [
            Message::system("Be brief."),
            Message::user("1+1?"),
            Message::assistant("\n2"),
            Message::tool("t"),
            Message::assistant("ok"),
        ];
        assert_eq!(
            shown(&hermes, &messages),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n\
             «\n2<|im_end|>»\n<|im_start|>user\n<tool_response>\nt\n</tool_response><|im_end|>\n<|im_start|>assistant\n\
             «ok<|im_end|>»\n"
        );
    }

    #[test]
    fn interpreter_output_is_not_learnt() {
        let retool = renderer(Format::Retool);
        let messages = [
            Message::user("6*7?"),
            Message::assistant("Run <code>print(6*7)</code>"),
            Message::tool("42"),
            Message::assistant("<answer>42</answer>"),
        ];
        let expected = "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n«Run <code>print(6*7)</code>»\n\
             <interpreter>\n42\n</interpreter>\n«<answer>42</answer><|im_end|>»\n";
        assert_eq!(shown(&retool, &messages), expected);
        // The same conversation as published data has it, in one message.
        let one =
            messages[1].content.text() + "\n<interpreter>\n42\n</interpreter>\n" + messages[3].content.text().as_str();
        assert_eq!(shown(&retool, &[messages[0].clone(), Message::assistant(one)]), expected);
        // A reply that waits for a result did not end its turn.
        assert_eq!(
            shown(&retool, &messages[..2]),
            "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n«Run <code>print(6*7)</code>»<|im_end|>\n"
        );
    }
}
