//! Which reply is given.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use vllm_sim_dataset::{
    DEFAULT_TABLE_NAME, Dataset, DatasetRowStorage, RecordedReply, RequestedReplyLength,
    hash_completion_prompt, hash_prompt_tokens,
};
use vllm_sim_random::{RandomStreamPurpose, request_rng};

use crate::dataset::{Made, SCHEMA, insert, tokens};

/// Replies that 50 requests get, as (first id, tokens, cut, matched).
fn replies(
    dataset: &Dataset,
    prompt: &[u32],
    limit: Option<u32>,
    ignore_eos: bool,
) -> BTreeSet<(u32, usize, bool, bool)> {
    let hashes = [hash_completion_prompt("x"), hash_prompt_tokens(prompt)];
    let length = match limit {
        Some(limit) if ignore_eos => RequestedReplyLength::Exactly(limit),
        Some(limit) => RequestedReplyLength::AtMost(limit),
        None => RequestedReplyLength::AtMost(u32::MAX),
    };
    (0..50)
        .map(|request| {
            let mut rng = request_rng(1, request, RandomStreamPurpose::Content);
            let found = dataset.find_reply(&hashes, length, &mut rng).unwrap();
            let RecordedReply { tokens, texts, cut, matched, .. } = found;
            let first = tokens[0];
            let expected: Vec<_> =
                (first..).take(tokens.len()).map(|id| format!("t{id} ")).collect();
            assert_eq!(texts, expected);
            (first, tokens.len(), cut, matched)
        })
        .collect()
}

/// Three replies to one prompt, one to another.
fn four() -> Made {
    tokens(&[(&[1, 2], 100, 3), (&[1, 2], 200, 5), (&[1, 2], 300, 9), (&[7], 400, 4)])
}

#[test]
fn fitting_reply_to_prompt_is_selected() {
    let dataset = four().open();
    let two = BTreeSet::from([(100, 3, false, true), (200, 5, false, true)]);
    assert_eq!(replies(&dataset, &[1, 2], Some(5), false), two);
    assert_eq!(replies(&dataset, &[1, 2], None, false).len(), 3);
    assert_eq!(replies(&dataset, &[7], Some(5), false), BTreeSet::from([(400, 4, false, true)]));
}

#[test]
fn longer_reply_is_truncated() {
    let dataset = four().open();
    let cut = BTreeSet::from([(100, 2, true, true), (200, 2, true, true), (300, 2, true, true)]);
    assert_eq!(replies(&dataset, &[1, 2], Some(2), false), cut);
}

#[test]
fn ignore_eos_prefers_exact_then_longer_reply() {
    let dataset = four().open();
    let exact = |limit| replies(&dataset, &[1, 2], Some(limit), true);
    assert_eq!(exact(5), BTreeSet::from([(200, 5, false, true)]));
    assert_eq!(exact(6), BTreeSet::from([(300, 6, true, true)]));
    let short = [(100, 3, false, true), (200, 5, false, true), (300, 9, false, true)];
    assert_eq!(exact(10), BTreeSet::from(short));
}

#[test]
fn an_unknown_prompt_gets_any_row() {
    let dataset = four().open();
    let any = |limit, exact| replies(&dataset, &[9, 9], Some(limit), exact);
    let fitting = [(100, 3, false, false), (400, 4, false, false)];
    assert_eq!(any(4, false), BTreeSet::from(fitting));
    assert_eq!(any(4, true), BTreeSet::from([(400, 4, false, false)]));
    let cut = [100, 200, 300, 400].map(|first| (first, 1, true, false));
    assert_eq!(any(1, false), BTreeSet::from(cut));
    assert_eq!(any(100, true).len(), 4);
}

#[test]
fn in_memory_copy_selects_same_replies() {
    let made = four();
    let copy = Dataset::open(&made.path, DEFAULT_TABLE_NAME, DatasetRowStorage::InMemory).unwrap();
    let file = made.open();
    for limit in [None, Some(1), Some(4), Some(100)] {
        for prompt in [&[1, 2][..], &[7], &[9]] {
            let both = [&copy, &file].map(|dataset| replies(dataset, prompt, limit, false));
            assert_eq!(both[0], both[1]);
        }
    }
    drop(file);
    made.connect().execute("DROP TABLE llmd", []).unwrap();
    assert_eq!(replies(&copy, &[7], None, false).len(), 1);
}

#[test]
fn version_0_6_is_looked_up_by_text() {
    let made = Made::at("old.sqlite3");
    let file = made.connect();
    file.execute_batch(&format!("CREATE TABLE llmd {SCHEMA}")).unwrap();
    insert(&file, &hash_completion_prompt("This is a test."), r#"["It ","is","."]"#, 3);
    drop(file);
    let dataset = made.open();
    let mut rng = request_rng(1, 1, RandomStreamPurpose::Content);
    let mut ask = |text: &str| {
        dataset.find_reply(
            &[hash_prompt_tokens(&[1]), hash_completion_prompt(text)],
            RequestedReplyLength::AtMost(2),
            &mut rng,
        )
    };
    let found = RecordedReply {
        tokens: Vec::new(),
        texts: vec!["It ".into(), "is".into()],
        cut: true,
        matched: true,
        times: Vec::new(),
        reasoning: 0,
    };
    assert_eq!(ask("This is a test."), Some(found));
    assert_eq!(ask("This is a test"), None);
}

#[test]
fn empty_dataset_has_no_reply() {
    let dataset = tokens(&[]).open();
    let mut rng = request_rng(1, 1, RandomStreamPurpose::Content);
    assert_eq!(
        dataset.find_reply(
            &[hash_prompt_tokens(&[1])],
            RequestedReplyLength::AtMost(u32::MAX),
            &mut rng
        ),
        None
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it is about real time")]
fn lookup_in_100_000_rows_is_under_1_ms() {
    let made = Made::at("large.sqlite3");
    let mut file = made.connect();
    file.execute_batch(&format!("CREATE TABLE llmd {SCHEMA}")).unwrap();
    let all = file.transaction().unwrap();
    for id in 0..100_000 {
        let reply = format!(r#"{{"Tokens":[{id},1,2],"Strings":["t{id} ","t1 ","t2 "]}}"#);
        insert(&all, &hash_prompt_tokens(&[id]), &reply, 3);
    }
    all.commit().unwrap();
    drop(file);
    let dataset = made.open();
    let mut rng = request_rng(1, 1, RandomStreamPurpose::Content);
    let mut times: Vec<Duration> = (0..1001)
        .map(|i| {
            let hash = hash_prompt_tokens(&[i * 99]);
            let started = Instant::now();
            let found = dataset
                .find_reply(&[hash], RequestedReplyLength::AtMost(u32::MAX), &mut rng)
                .unwrap();
            let took = started.elapsed();
            assert_eq!((found.tokens[0], found.matched), (i * 99, true));
            took
        })
        .collect();
    times.sort_unstable();
    let median = times[500];
    assert!(median < Duration::from_millis(1), "{median:?}");
}
