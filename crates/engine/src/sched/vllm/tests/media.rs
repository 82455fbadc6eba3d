//! Tests chunks and encodings of images, audio and video.

use super::*;
use crate::latency::{MediaEncoderLatency, RooflineModelSetup, find_gpu, known_model_shape};
use crate::{MediaEncoderKind, PromptMediaItem};

/// Creates a sequence with items: content, first token, number of tokens.
fn with_media(seq: Sequence, items: &[(u64, u32, u32)]) -> Sequence {
    let items = items.iter().map(|&(key, start, len)| PromptMediaItem {
        key,
        kind: MediaEncoderKind::Vision,
        start,
        len,
    });
    Sequence { media: PromptMediaItem::sorted_without_overlap(items.collect()), ..seq }
}

fn config_with_encoder(budget: u32, cache_size: u32) -> VllmSchedulerConfig {
    VllmSchedulerConfig {
        encoder: Some(Box::new(EncoderSchedulingConfig {
            budget,
            cache_size,
            chunked_input: true,
            latency: None,
        })),
        ..config()
    }
}

#[test]
fn a_chunk_ends_before_an_item_beyond_the_budget_of_its_step() {
    let two = || with_media(new_sequence(1, 60, 1), &[(1, 10, 15), (2, 30, 15)]);
    let log = |budget| event_log(config_with_encoder(budget, 100), submit_inputs(vec![(0, two())]));
    assert_eq!(log(30), "0: s1 | 10: t1 e1");
    assert_eq!(log(20), "0: s1 | 20: t1 e1");
}

#[test]
fn chunk_ends_before_media_without_encoder_cache_room() {
    let two = with_media(new_sequence(1, 60, 1), &[(1, 10, 15), (2, 30, 15)]);
    // After the first item is computed, the second takes its place.
    let log = event_log(config_with_encoder(100, 20), submit_inputs(vec![(0, two)]));
    assert_eq!(log, "0: s1 | 20: t1 e1");
}

#[test]
fn sequence_without_encoder_room_is_overtaken() {
    let config = VllmSchedulerConfig {
        prefill: ChunkedPrefillConfig {
            long_prefill_token_threshold: 16,
            ..ChunkedPrefillConfig::default()
        },
        ..config_with_encoder(100, 30)
    };
    let inputs = vec![
        (0, with_media(new_sequence(1, 40, 1), &[(1, 0, 30)])),
        (0, with_media(new_sequence(2, 10, 1), &[(2, 0, 5)])),
        (0, new_sequence(3, 10, 1)),
    ];
    // The item of 1 takes all space until its 30 tokens are computed.
    let log = event_log(config, submit_inputs(inputs));
    assert_eq!(log, "0: s1 s3 | 10: t3 e3 | 20: s2 | 30: t1 e1 t2 e2");
}

#[test]
fn sequence_waiting_for_encoder_counts_as_deferred() {
    let mut engine = VllmScheduler::new(config_with_encoder(10, 100)).unwrap();
    let mut out = Outbox::new();
    for id in 1..=3 {
        let seq = with_media(new_sequence(id, 40, 1), &[(id, 0, 10)]);
        engine.submit(SimTime::ZERO, seq, &mut out).unwrap();
    }
    engine.advance(SimTime::ZERO, &mut out);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.deferred), (1, 0, 2));
}

#[test]
fn unsplittable_media_item_stays_in_one_chunk() {
    let log = |chunked_input, seqs: Vec<Sequence>| {
        let mut config = config_with_encoder(100, 100);
        config.max_num_batched_tokens = 16;
        if let Some(encoder) = &mut config.encoder {
            encoder.chunked_input = chunked_input;
        }
        event_log(config, submit_inputs(seqs.into_iter().map(|seq| (0, seq)).collect()))
    };
    let item = || with_media(new_sequence(1, 32, 1), &[(1, 10, 10)]);
    assert_eq!(log(true, vec![item()]), "0: s1 | 20: t1 e1");
    // 10 tokens, 16 with the whole item, and 6.
    assert_eq!(log(false, vec![item()]), "0: s1 | 30: t1 e1");
    // The space left by the first item is too small for the item of the second.
    let first = with_media(new_sequence(2, 16, 1), &[(2, 0, 12)]);
    let both = log(false, vec![new_sequence(1, 8, 1), first]);
    assert_eq!(both, "0: s1 | 10: t1 e1 s2 | 20: t2 e2");
    // No chunk is large enough for this item.
    let huge = with_media(new_sequence(1, 32, 1), &[(1, 0, 20)]);
    assert_eq!(log(false, vec![huge]), "0: s1 | 20: t1 e1");
}

#[test]
fn equal_items_of_two_requests_are_encoded_once() {
    let both = |second| {
        let inputs = vec![
            (0, with_media(new_sequence(1, 40, 1), &[(1, 0, 15)])),
            (0, with_media(new_sequence(2, 40, 1), &[(second, 20, 15)])),
        ];
        event_log(config_with_encoder(15, 100), submit_inputs(inputs))
    };
    assert_eq!(both(1), "0: s1 s2 | 10: t1 e1 t2 e2");
    // The budget of the step is used up: 2 gets the text before its item.
    assert_eq!(both(2), "0: s1 s2 | 10: t1 e1 | 20: t2 e2");
}

#[test]
fn oversized_media_item_waits_only_for_other_items() {
    let inputs = vec![
        (0, with_media(new_sequence(1, 40, 1), &[(1, 0, 5)])),
        (0, with_media(new_sequence(2, 40, 1), &[(2, 0, 30)])),
    ];
    let log = event_log(config_with_encoder(10, 20), submit_inputs(inputs));
    assert_eq!(log, "0: s1 | 10: t1 e1 s2 | 20: t2 e2");
}

#[test]
fn encoding_time_is_added_once_before_the_step() {
    let mut config = config_with_encoder(2000, 2000);
    let shape = known_model_shape("Qwen/Qwen2.5-7B-Instruct").unwrap();
    let setup = RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone());
    // An embedding of an unknown encoder takes 10 us.
    let latency = MediaEncoderLatency::new((None, None), &setup, false).unwrap();
    if let Some(encoder) = &mut config.encoder {
        encoder.latency = Some(Box::new(latency));
    }
    let inputs = vec![
        (0, with_media(new_sequence(1, 700, 2), &[(1, 0, 500)])),
        (50, with_media(new_sequence(2, 700, 1), &[(1, 0, 500)])),
        (100, with_media(new_sequence(3, 700, 1), &[(1, 0, 500), (2, 500, 200)])),
        (150, new_sequence(4, 700, 1)),
    ];
    assert_eq!(
        event_log(config, submit_inputs(inputs)),
        "0: s1 | 15: t1 | 16: t1 e1 | 50: s2 | 60: t2 e2 | 100: s3 | 112: t3 e3 | 150: s4 | 160: t4 e4"
    );
}

#[test]
fn an_item_in_the_prefix_cache_is_not_encoded() {
    let mut engine = VllmScheduler::new(config_with_encoder(100, 100)).unwrap();
    let mut out = Outbox::new();
    let mut serve = |engine: &mut VllmScheduler, id, start| {
        let now = SimTime::from_millis(id * 100);
        let seq = with_media(sequence_in_family(id, 7, 40, 1), &[(1, start, 8)]);
        engine.submit(now, seq, &mut out).unwrap();
        while let Some(due) = engine.next_wakeup() {
            engine.advance(due, &mut out);
        }
        let made = engine.encoder_cached_and_referenced_embeddings();
        engine.apply_command(now, EngineCommand::ResetEncoderCache, &mut out);
        (made, engine.encoder_cached_and_referenced_embeddings())
    };
    let (some, none) = (Some((8, 0)), Some((0, 0)));
    assert_eq!(serve(&mut engine, 1, 20), (some, none));
    // 32 tokens are found: the whole item, or all but its last tokens.
    assert_eq!(serve(&mut engine, 2, 20), (none, none));
    assert_eq!(serve(&mut engine, 3, 28), (some, none));
}

#[test]
fn a_preempted_or_ended_sequence_holds_no_embeddings() {
    let mut engine = VllmScheduler::new(VllmSchedulerConfig {
        max_num_batched_tokens: 16,
        ..config_with_encoder(100, 100)
    })
    .unwrap();
    let mut out = Outbox::new();
    let at = SimTime::from_millis;
    let seq = with_media(new_sequence(1, 40, 1), &[(1, 0, 30)]);
    engine.submit(at(0), seq, &mut out).unwrap();
    engine.advance(at(0), &mut out);
    assert_eq!(engine.encoder_cached_and_referenced_embeddings(), Some((30, 30)));
    engine.apply_command(
        at(1),
        EngineCommand::ResetPrefixCache(PrefixCacheResetScope::Preempt),
        &mut out,
    );
    // The reset follows the running step.
    assert_eq!(engine.encoder_cached_and_referenced_embeddings(), Some((30, 30)));
    engine.advance(at(10), &mut out);
    assert_eq!(engine.encoder_cached_and_referenced_embeddings(), Some((30, 0)));
    engine.advance(at(10), &mut out);
    assert_eq!(engine.encoder_cached_and_referenced_embeddings(), Some((30, 30)));
    engine.abort(at(11), SeqId(1), &mut out);
    assert_eq!(engine.encoder_cached_and_referenced_embeddings(), Some((30, 0)));
}
