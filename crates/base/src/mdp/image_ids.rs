//! Token ids of images.
//!
//! An image takes the place of several tokens, whose embeddings a vision tower computes. All of
//! them have one id, which names the image: [`FIRST_IMAGE_ID`] plus its number in the run. Equal
//! ids are therefore equal inputs of the model, also for images (docs/lab/decisions/0037).

use serde_json::Value;

use super::{Answer, Trajectory};

/// Ids of a vocabulary are smaller.
pub const FIRST_IMAGE_ID: u32 = 1 << 31;

/// The id of the tokens of image `number`.
pub const fn image_id(number: u32) -> u32 {
    FIRST_IMAGE_ID + number
}

/// The number of the image of an id; `None` for a token of the vocabulary.
pub const fn image_number(id: u32) -> Option<u32> {
    id.checked_sub(FIRST_IMAGE_ID)
}

/// Replaces the numbers of images in a trajectory: in its prompts, and in the prompts of texts that
/// its script generated. `number` returns the new number of an image.
///
/// # Errors
/// Errors of `number`.
pub fn renumber_images<E>(trajectory: &mut Trajectory, mut number: impl FnMut(u32) -> Result<u32, E>) -> Result<(), E> {
    for step in &mut trajectory.steps {
        for id in step.prompt_ids.iter_mut().chain(&mut step.next_prompt_ids) {
            if let Some(old) = image_number(*id) {
                *id = image_id(number(old)?);
            }
        }
    }
    for call in trajectory.record.iter_mut().filter(|call| call.kind == "generate") {
        let Some(Answer::Ok(answer)) = &mut call.answer else { continue };
        for id in answer.get_mut("prompt_ids").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(old) = id.as_u64().and_then(|id| image_number(u32::try_from(id).ok()?)) {
                *id = image_id(number(old)?).into();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::mdp::{ExternalCall, testing};

    #[test]
    fn images_are_renumbered_wherever_a_trajectory_has_ids() {
        let call = |kind: &str, ids: &[u32]| ExternalCall {
            step: 0,
            at: "step".to_owned(),
            kind: kind.to_owned(),
            request: json!({ "train": true }),
            answer: Some(Answer::Ok(json!({ "text": "a", "prompt_ids": ids, "token_ids": [image_id(1)] }))),
        };
        let with = |numbers: [u32; 4]| {
            let [a, b, c, d] = numbers.map(image_id);
            let mut trajectory = testing::trajectory(vec![testing::step(&[1, a, a, 2, b], &[3])]);
            trajectory.steps[0].next_prompt_ids = vec![1, c];
            trajectory.record = vec![call("generate", &[4, d]), call("http", &[image_id(0)])];
            trajectory.record.push(ExternalCall { answer: None, ..call("generate", &[]) });
            trajectory
        };
        let mut trajectory = with([0, 1, 2, 0]);
        renumber_images(&mut trajectory, |number| Ok::<_, ()>([7, 5, 6][number as usize])).unwrap();
        assert_eq!(trajectory, with([7, 5, 6, 7]));
        assert_eq!(renumber_images(&mut trajectory, Err), Err(7));
    }
}
