//! Conversations to ids and a loss mask for supervised training, in the same pieces as a rollout.

use serde_json::Value;

use super::Renderer;
use super::pieces::Pieces;
use super::turns::Next;
use r1_base::error::{Error, Kind, Result};
use r1_base::mdp::{Message, Role};

/// A conversation for supervised training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Supervised {
    /// `[T]`
    pub ids: Vec<u32>,
    /// `[T]`, true on ids that the policy would have sampled: replies and their end-of-turn token.
    pub mask: Vec<bool>,
}

impl Renderer {
    /// The ids of a conversation and a mask of the policy's ids: each assistant's content and
    /// end-of-turn token, not the line break after it; in Retool each piece up to `</code>`, not
    /// the interpreter's output.
    pub fn supervised(&self, messages: &[Message], tools: &[Value]) -> Result<Supervised> {
        let (ids, mask) = self.marked_pieces(messages, tools, false)?.encode(self.tokenizer())?;
        Ok(Supervised { ids, mask })
    }

    /// The same, with a loss only on assistant messages with `trained[index]`.
    ///
    /// # Errors
    /// Errors of [`Renderer::supervised`]; [`Kind::Model`] if the template does not show which
    /// message wrote what.
    pub fn supervised_where(&self, messages: &[Message], tools: &[Value], trained: &[bool]) -> Result<Supervised> {
        let replies: Vec<usize> =
            (0..messages.len()).filter(|index| messages[*index].role == Role::Assistant).collect();
        let is_trained = |index: usize| trained.get(index).copied().unwrap_or(true);
        if replies.iter().all(|index| is_trained(*index)) {
            return self.supervised(messages, tools);
        }
        let mut pieces = self.pieces(messages, tools, Next::End)?;
        let sampled = |pieces: &Pieces| pieces.0.iter().filter(|piece| piece.sampled).count();
        // The sampled pieces of a conversation up to a message are the sampled pieces of its
        // messages up to there.
        let (all, mut owners) = (sampled(&pieces), Vec::new());
        for index in replies {
            let to = if index + 1 == messages.len() {
                all
            } else {
                sampled(&self.pieces(&messages[..=index], tools, Next::End)?)
            };
            if to < owners.len() {
                break;
            }
            owners.resize(to, index);
        }
        if owners.len() != all {
            return Err(Error::new(Kind::Model, "the chat template does not show where a message begins and ends")
                .hint("leave out `weight`, or use a ChatML template"));
        }
        for (piece, owner) in pieces.0.iter_mut().filter(|piece| piece.sampled).zip(owners) {
            piece.sampled = is_trained(owner);
        }
        let (ids, mask) = pieces.encode(self.tokenizer())?;
        Ok(Supervised { ids, mask })
    }

    /// The text of the same; `prompt` appends the generation prompt.
    pub fn marked_pieces(&self, messages: &[Message], tools: &[Value], prompt: bool) -> Result<Pieces> {
        let pieces = self.pieces(messages, tools, if prompt { Next::Prompt } else { Next::End })?;
        let replies = messages.iter().filter(|message| message.role == Role::Assistant).count();
        let sampled = pieces.0.iter().filter(|piece| piece.sampled).count();
        if replies > 0 && sampled == 0 {
            return Err(Error::new(Kind::Model, "the chat template hides where an assistant's text begins and ends")
                .hint("use a ChatML template (chat_template.jinja in the model directory)"));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;
    use crate::Renderer;
    use crate::reference_data::reference_data;
    use crate::testing::{real, renderer, show};

    fn shown(renderer: &Renderer, messages: &[Message]) -> String {
        let Supervised { ids, mask } = renderer.supervised(messages, &[]).unwrap();
        show(renderer, &ids, &mask)
    }

    #[test]
    fn the_loss_mask_covers_replies_and_their_end_tokens() {
        let hermes = renderer("hermes");
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
    fn interpreter_output_has_no_loss() {
        let retool = renderer("retool");
        let messages = [
            Message::user("6*7?"),
            Message::assistant("Run <code>print(6*7)</code>"),
            Message::tool("42"),
            Message::assistant("<answer>42</answer>"),
        ];
        let expected = "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n«Run <code>print(6*7)</code>»\n\
             <interpreter>\n42\n</interpreter>\n«<answer>42</answer><|im_end|>»\n";
        assert_eq!(shown(&retool, &messages), expected);
        // The same conversation in one message, as in published data.
        let one =
            messages[1].content.text() + "\n<interpreter>\n42\n</interpreter>\n" + messages[3].content.text().as_str();
        assert_eq!(shown(&retool, &[messages[0].clone(), Message::assistant(one)]), expected);
        // A reply that waits for a result did not end its turn.
        assert_eq!(
            shown(&retool, &messages[..2]),
            "<|im_start|>user\n6*7?<|im_end|>\n<|im_start|>assistant\n«Run <code>print(6*7)</code>»<|im_end|>\n"
        );
    }

    #[test]
    fn messages_with_weight_zero_have_no_loss() {
        let messages = [Message::user("a"), Message::assistant("b"), Message::user("c"), Message::assistant("d")];
        let shown = |renderer: &Renderer, trained: &[bool]| {
            let Supervised { ids, mask } = renderer.supervised_where(&messages, &[], trained).unwrap();
            show(renderer, &ids, &mask)
        };
        let hermes = renderer("hermes");
        let whole = |b: &str, d: &str| {
            format!(
                "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n{b}\n<|im_start|>user\nc<|im_end|>\n\
                 <|im_start|>assistant\n{d}\n"
            )
        };
        let (b, d) = ("b<|im_end|>", "d<|im_end|>");
        let marked = |text: &str| format!("«{text}»");
        assert_eq!(shown(&hermes, &[false, true, false, true]), whole(&marked(b), &marked(d)));
        assert_eq!(shown(&hermes, &[false, false, false, true]), whole(b, &marked(d)));
        assert_eq!(shown(&hermes, &[false, true, false, false]), whole(&marked(b), d));
        // In one turn with its results, each message has its own piece.
        let retool = renderer("retool");
        let turn = [
            Message::user("q"),
            Message::assistant("Run <code>x</code>"),
            Message::tool("1"),
            Message::assistant("so 1"),
        ];
        let Supervised { ids, mask } = retool.supervised_where(&turn, &[], &[true, false, true, true]).unwrap();
        let text = show(&retool, &ids, &mask);
        assert!(text.contains("Run <code>x</code>") && !text.contains("«Run"), "{text}");
        assert!(text.contains("«so 1<|im_end|>»"), "{text}");
    }

    /// The spans that transformers finds with `{% generation %}` in the training templates of TRL.
    /// They include the line break after a turn, which a rollout does not sample.
    #[test]
    #[ignore = "needs the reference data: just test-data"]
    fn loss_masks_agree_with_generation_tags() {
        let dir = reference_data("chat-templates");
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let inputs: Value = serde_json::from_str(&read("conversations.json")).unwrap();
        let mut checked = 0;
        for line in read("assistant_mask_goldens.jsonl").lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let (name, conversation) = (row["template"].as_str().unwrap(), row["conversation"].as_str().unwrap());
            let tagged = ["trl__qwen2_5_training", "trl__qwen3_training", "trl__qwen3_instruct_2507_training"];
            let Some(renderer) = tagged.contains(&name).then(|| real(name, "hermes")) else { continue };
            let input = &inputs["conversations"][conversation];
            let Some(messages) = messages(&input["messages"]) else { continue };
            let tools = input["tools"].as_array().map_or(&[][..], Vec::as_slice);
            let end = if input["add_generation_prompt"] == true { Next::Prompt } else { Next::End };
            let pieces = renderer.pieces(&messages, tools, end).unwrap();
            // r1 writes calls and reasoning into the content here, transformers does not.
            if pieces.text() != row["text"].as_str().unwrap() {
                continue;
            }
            let sampled: Vec<&str> =
                pieces.0.iter().filter(|piece| piece.sampled).map(|piece| piece.text.trim()).collect();
            let expected: Vec<&str> =
                row["assistant_texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().trim()).collect();
            assert_eq!(sampled, expected, "{name} {conversation}");
            checked += 1;
        }
        eprintln!("assistant masks: {checked} agree");
        assert!(checked >= 20, "{checked}");
    }

    /// Messages as in the OpenAI API, with calls as `{"function": {…}}`.
    fn messages(list: &Value) -> Option<Vec<Message>> {
        let mut list = list.clone();
        for message in list.as_array_mut()? {
            if message["content"].is_null() {
                message["content"] = "".into();
            }
            for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                let mut function = call["function"].take();
                function["id"] = call["id"].take();
                *call = function;
            }
        }
        serde_json::from_value(list).ok()
    }
}
