//! Queues, cancellation, streams and deadlines.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;

#[test]
fn more_requests_than_slots_are_all_answered_in_order() {
    let mut engine = engine(2);
    let requests: Vec<Request> = (0..9).map(|n| request(&prompt(n, 6 + n), u64::from(n), greedy(5))).collect();
    let (completions, stats) = replies(&mut engine, requests.clone());
    assert_eq!((stats.requests, stats.finished, stats.max_batch), (9, 9, 2));
    for (submitted, completion) in requests.into_iter().zip(completions) {
        let (alone, _) = replies(&mut self::engine(1), vec![submitted]);
        assert_eq!(completion.token_ids, alone[0].token_ids);
    }
}

#[test]
fn a_dropped_receiver_cancels_its_request() {
    let mut engine = engine(1);
    let (client, queue) = channel();
    drop(client.submit(request(&prompt(1, 5), 1, greedy(80))));
    let kept = client.submit(request(&prompt(2, 5), 2, greedy(3)));
    drop(client);
    let stats = engine.serve(queue).unwrap();
    assert_eq!(kept.blocking_recv().unwrap().unwrap().token_ids.len(), 3);
    assert_eq!((stats.finished, stats.sampled_tokens), (2, 3));
}

/// With a full queue, requests wait at the submitter in FIFO order until others are complete.
#[test]
fn full_queue_queues_requests_at_the_submitter() {
    let submit = |client: &EngineClient, count: u32| -> Vec<_> {
        (1..=count).map(|n| client.submit(request(&prompt(n, 5), u64::from(n), greedy(3)))).collect()
    };
    let conversation = |call: Result<Option<EngineMessage>, _>| match call {
        Ok(Some(EngineMessage::Generate { request, .. })) => Some(request.conversation),
        _ => None,
    };
    let (client, queue) = bounded(2);
    let mut coming = submit(&client, 4);
    let mut wake = |n: usize| assert!((&mut coming[n]).now_or_never().is_none());
    let first = queue.wait(Duration::ZERO);
    wake(2);
    assert_eq!(conversation(queue.wait(Duration::ZERO)), Some(2));
    // The second is complete and its permit is free; the first is running.
    assert_eq!(conversation(queue.wait(Duration::ZERO)), None);
    wake(2);
    wake(3);
    assert_eq!(conversation(queue.wait(Duration::ZERO)), Some(3));
    assert_eq!((conversation(first), conversation(queue.wait(Duration::ZERO))), (Some(1), None));
    drop(queue);
    // Without an engine all requests are aborted, sent or not.
    assert!(coming.into_iter().all(|coming| coming.blocking_recv().is_err()));

    let (mut engine, (client, queue)) = (engine(3), bounded(2));
    let trajectories = std::thread::spawn(move || {
        let coming = submit(&client, 20);
        drop(client);
        coming.into_iter().map(|coming| coming.blocking_recv().unwrap().unwrap().token_ids.len()).collect::<Vec<_>>()
    });
    let stats = engine.serve(queue).unwrap();
    assert_eq!(trajectories.join().unwrap(), [3; 20]);
    assert_eq!((stats.requests, stats.max_batch), (20, 2));
}

#[test]
fn cancelled_running_request_frees_its_slot() {
    let mut engine = engine(1);
    let (client, queue) = channel();
    let progress = engine.progress();
    let trajectories = std::thread::spawn(move || {
        let running = client.submit(request(&prompt(1, 5), 1, sampled(80)));
        while progress.stats().sampled_tokens == 0 {
            std::thread::yield_now();
        }
        drop(running);
        client.submit(request(&prompt(2, 5), 2, greedy(3))).blocking_recv().unwrap().unwrap()
    });
    let stats = engine.serve(queue).unwrap();
    assert_eq!(trajectories.join().unwrap().token_ids.len(), 3);
    assert_eq!(stats.finished, 2);
}

#[test]
fn trajectories_start_and_end_while_the_engine_serves() {
    let mut engine = engine(3);
    let (client, queue) = channel();
    let talk = |client: EngineClient, n: u32| {
        let mut ids = prompt(n, 8);
        for step in 0..4 {
            let mut submitted = request(&ids, u64::from(n), sampled(5));
            submitted.seed.step = step;
            let completion = client.submit(submitted).blocking_recv().unwrap().unwrap();
            ids.extend(completion.token_ids);
            ids.push(1);
        }
        client.release(u64::from(n));
        ids
    };
    let threads: Vec<_> = (0..6)
        .map(|n| {
            let client = client.clone();
            std::thread::spawn(move || talk(client, n))
        })
        .collect();
    drop(client);
    let stats = engine.serve(queue).unwrap();
    for (n, thread) in (0..).zip(threads) {
        let (alone, queue) = channel();
        let again = std::thread::spawn(move || talk(alone, n));
        self::engine(1).serve(queue).unwrap();
        assert_eq!(thread.join().unwrap(), again.join().unwrap());
    }
    assert_eq!((stats.finished, stats.sampled_tokens), (24, 120));
}

/// Twelve conversations of three turns on four slots, with a tool that takes a step: each token of
/// a prompt is computed once, as with a slot for each conversation.
#[test]
fn conversations_keep_their_slots_while_others_wait() {
    let computed = |slots: usize| {
        let mut engine = engine(slots);
        let (client, queue) = channel();
        let submit = |n: u32, ids: &[u32]| client.submit(request(ids, u64::from(n), sampled(3 + n as usize % 4)));
        let talk = |n| {
            let ids = prompt(n, 12);
            let reply = submit(n, &ids);
            (ids, 1, Some(reply))
        };
        let mut talks: Vec<_> = (0..12).map(talk).collect();
        while talks.iter().any(|(_, turn, reply)| *turn < 3 || reply.is_some()) {
            engine.step(&queue);
            for (n, (ids, turn, reply)) in (0..).zip(&mut talks) {
                let Some(pending) = reply else {
                    if *turn < 3 {
                        *turn += 1;
                        *reply = Some(submit(n, ids));
                    }
                    continue;
                };
                let Poll::Ready(done) = Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) else {
                    continue;
                };
                ids.extend(done.unwrap().unwrap().token_ids);
                ids.push(1);
                *reply = None;
                if *turn == 3 {
                    client.release(u64::from(n));
                }
            }
        }
        engine.progress().stats().prefilled_tokens
    };
    assert_eq!(computed(4), computed(12));
}

#[test]
fn generate_streams_tokens_and_can_be_stopped() {
    let mut engine = engine(2);
    let submitted = request(&prompt(4, 10), 1, greedy(12));
    let mut seen = Vec::new();
    let whole = engine.generate(submitted.clone(), &|| false, &mut |id| seen.push(id)).unwrap();
    assert_eq!(whole.token_ids, seen);
    let left = Cell::new(3);
    let cut = engine.generate(submitted, &|| left.get() == 0, &mut |_| left.set(left.get() - 1)).unwrap();
    assert_eq!((cut.finish_reason, &cut.token_ids[..]), (FinishReason::Length, &seen[..3]));
    let empty = engine.generate(request(&[], 1, greedy(1)), &|| false, &mut |_| ());
    assert_eq!(empty.unwrap_err().kind, error::Kind::Env);
}

/// A prompt can be stopped between two layers; computed chunks are not recomputed, and later
/// results are correct.
#[test]
fn prefill_can_be_stopped_between_layers() {
    let submitted = request(&prompt(4, 80), 1, greedy(6));
    let expected = engine(1).generate(submitted.clone(), &|| false, &mut |_| ()).unwrap();
    // 80 tokens take three model calls. Each polls before the call, at both layers and at the end;
    // the CPU kernels also poll while they pack the weights.
    let longest = if crate::native::has_cpu_kernels() { 13 } else { 8 };
    for patience in [0, 1, 3, 6, 8, 13].into_iter().filter(|patience| *patience <= longest) {
        let mut engine = Engine::new(model(), vocab(), EngineOptions { prefill_tokens: 30, ..options(1) }).unwrap();
        let left = Cell::new(patience);
        let stop = || {
            left.set(left.get() - 1);
            left.get() < 0
        };
        let cut = engine.generate(submitted.clone(), &stop, &mut |_| ()).unwrap();
        assert_eq!((cut.finish_reason, cut.token_ids.len()), (FinishReason::Length, 0), "{patience}");
        let whole = engine.generate(submitted.clone(), &|| false, &mut |_| ()).unwrap();
        assert_eq!(whole.token_ids, expected.token_ids, "{patience}");
        assert_same(&whole.logprobs, &expected.logprobs);
        assert_eq!(whole.prefilled + cut.prefilled, 80, "{patience}");
    }
}

/// Tokens are streamed one by one and equal the tokens of the completion, which does not depend on
/// the stream being read.
#[test]
fn sampled_tokens_are_streamed() {
    let mut engine = engine(2);
    let (client, queue) = channel();
    let (mut tokens, completion) = client.stream(request(&prompt(4, 10), 1, sampled(12)));
    let (unread, other) = client.stream(request(&prompt(5, 10), 2, sampled(3)));
    drop((client, unread));
    engine.serve(queue).unwrap();
    let completion = completion.blocking_recv().unwrap().unwrap();
    let mut seen = Vec::new();
    while let Some(token) = tokens.blocking_recv() {
        seen.push(token);
    }
    assert_eq!(seen.iter().map(|token| token.id).collect::<Vec<_>>(), completion.token_ids);
    assert_eq!(seen.iter().map(|token| token.logprob).collect::<Vec<_>>(), completion.logprobs);
    assert_eq!(other.blocking_recv().unwrap().unwrap().token_ids.len(), 3);
}

/// A response past its deadline has the tokens sampled until then; a waiting request has none;
/// others continue.
#[test]
fn deadlines_end_responses() {
    let mut engine = engine(1);
    let short = |seconds| Sampling { max_seconds: seconds, ..sampled(100) };
    let requests = vec![
        request(&prompt(4, 10), 1, short(1e-9)),
        request(&prompt(5, 10), 2, Sampling { max_seconds: 3600.0, ..sampled(5) }),
    ];
    let (completions, _) = serve(&mut engine, requests);
    let late = completions[0].as_ref().unwrap();
    assert_eq!((late.finish_reason, late.token_ids.len()), (FinishReason::Deadline, 0));
    assert_eq!(completions[1].as_ref().unwrap().token_ids.len(), 5);
    // A slow machine may not reach the first token within the shortest of these limits.
    let cut = [0.05, 2.0, 60.0].into_iter().find_map(|limit| {
        let mut outlast = Some(Duration::from_secs_f64(limit));
        let submitted = request(&prompt(6, 10), 3, Sampling { max_seconds: limit, ..sampled(100) });
        // The first token takes the whole limit.
        let reply =
            engine.generate(submitted, &|| false, &mut |_| outlast.take().into_iter().for_each(std::thread::sleep));
        let reply = reply.unwrap();
        assert_eq!(reply.finish_reason, FinishReason::Deadline);
        (!reply.token_ids.is_empty()).then_some(reply)
    });
    assert_eq!(cut.unwrap().token_ids.len(), 1);
}

#[test]
fn a_queue_without_clients_closes_at_once() {
    let (client, queue) = channel();
    drop(client);
    assert_eq!(engine(1).serve(queue).unwrap().requests, 0);
}

#[test]
fn a_client_without_an_engine_gets_an_aborted_request() {
    let (client, queue) = channel();
    drop(queue);
    let receiver = client.submit(request(&[1], 1, greedy(1)));
    assert!(receiver.blocking_recv().is_err());
    client.release(1);
}
