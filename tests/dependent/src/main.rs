//! Runs two trajectories of the recipe scripts/retool.lua of a checkout of r1, with a policy
//! written here.

use std::path::Path;
use std::sync::Arc;

use r1::mdp::{Policy, Scripted};
use r1::rollout::{Pool, PoolOptions, Spec, no_progress};
use r1::script::{Script, Split};
use r1::text::Renderer;

fn main() -> r1::Result<()> {
    let root = std::env::args().nth(1).unwrap_or_else(|| "../..".to_owned());
    let script = Script::load(&Path::new(&root).join("scripts/retool.lua"), &["seed=3".to_owned()])?;
    let renderer = Arc::new(Renderer::load(&Path::new(&root).join("models/r1-nano"), "retool")?);
    let reply = renderer.tokenizer().encode("<answer>\\boxed{42}</answer><|im_end|>")?;
    let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_request| reply.clone()));
    let pool = Pool::new(&script, &renderer, &PoolOptions::default())?;
    let specs = (0..2).map(|task| Spec::new(Split::Eval, task, &script.settings)).collect();
    let trajectories = pool.start(&policy, specs, &no_progress())?.finish()?;
    println!("{} trajectories with libtorch {}", trajectories.len(), r1::native::libtorch_version());
    Ok(())
}
