//! Log probabilities and embeddings that mean something, though they are made up.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::sim::Sim;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";

async fn post(sim: &Sim, path: &str, body: &Value) -> Value {
    let answer = sim.post(path, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    answer.json()
}

fn floats(list: &Value) -> Vec<f64> {
    let list = list.as_array().unwrap();
    list.iter().filter_map(Value::as_f64).collect()
}

#[tokio::test]
async fn vocabulary_probabilities_sum_to_one() {
    let sim = Sim::serve(&["--max-logprobs", "-1"]).await;
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "logprobs": true,
        "top_logprobs": -1,
    });
    let answer = post(&sim, CHAT, &body).await;
    for position in answer["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        let top = position["top_logprobs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|e| e["logprob"].as_f64().unwrap().exp()).sum();
        assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    }
}

/// The log probability of the one token drawn, and of the likeliest.
async fn drawn(sim: &Sim, seed: usize, temperature: f64) -> (f64, f64) {
    let body = json!({
        "prompt": "Hi", "max_tokens": 1, "logprobs": 5, "seed": seed, "temperature": temperature,
    });
    let answer = post(sim, COMPLETION, &body).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    let own = floats(&logprobs["token_logprobs"])[0];
    let top = logprobs["top_logprobs"][0].as_object().unwrap();
    let best = top.values().filter_map(Value::as_f64).fold(own, f64::max);
    (own, best)
}

#[tokio::test]
async fn sampling_may_pick_less_likely_tokens() {
    let sim = Sim::serve(&[]).await;
    let mut first = [0, 0, 0];
    let mut best_of_all = BTreeSet::new();
    for seed in 0..40 {
        for (index, temperature) in [0.0, 0.7, 2.0].into_iter().enumerate() {
            let (own, best) = drawn(&sim, seed, temperature).await;
            first[index] += usize::from(own == best);
            best_of_all.insert(best.to_bits());
        }
        assert_eq!(drawn(&sim, seed, 0.7).await, drawn(&sim, seed, 0.7).await);
    }
    // What stands before is the same, and so is the distribution.
    assert_eq!(best_of_all.len(), 1);
    assert_eq!(first[0], 40);
    assert!(first[1] < 40 && first[2] < first[1], "{first:?}");
}

#[tokio::test]
async fn prompt_logprobs_score_given_tokens() {
    let sim = Sim::serve(&[]).await;
    let mut sums = Vec::new();
    for ending in [" yes", " no", " maybe", " it is not so"] {
        let body = json!({
            "prompt": format!("Is it true?{ending}"), "max_tokens": 1, "echo": true, "logprobs": 1,
        });
        let answer = post(&sim, COMPLETION, &body).await;
        let values = floats(&answer["choices"][0]["logprobs"]["token_logprobs"]);
        assert!(values.iter().all(|value| *value <= 0.0));
        assert_eq!(answer, {
            let mut again = post(&sim, COMPLETION, &body).await;
            for key in ["id", "created"] {
                again[key] = answer[key].clone();
            }
            again
        });
        sums.push((values.len(), values.iter().sum::<f64>()));
    }
    let distinct: BTreeSet<u64> = sums.iter().map(|(_, sum)| sum.to_bits()).collect();
    assert_eq!(distinct.len(), sums.len(), "{sums:?}");
    // The shortest is not always the likeliest.
    let mut longer = 0;
    for question in 0..30 {
        let mut scores = Vec::new();
        for ending in [" no", " it is so"] {
            let body = json!({
                "prompt": format!("Question {question}:{ending}"), "max_tokens": 1, "echo": true,
                "logprobs": 0,
            });
            let answer = post(&sim, COMPLETION, &body).await;
            let values = floats(&answer["choices"][0]["logprobs"]["token_logprobs"]);
            scores.push(values.iter().sum::<f64>());
        }
        longer += usize::from(scores[1] > scores[0]);
    }
    assert!((1..30).contains(&longer), "{longer}");
}

#[tokio::test]
async fn llm_ds_mode_keeps_llm_ds_values() {
    let sim = Sim::llmd(&["--compat", "llm-d"]).await;
    let body = json!({"model": "tiny-llama", "prompt": "Hi", "max_tokens": 3, "logprobs": 1, "ignore_eos": true});
    let answer = post(&sim, COMPLETION, &body).await;
    let values = floats(&answer["choices"][0]["logprobs"]["token_logprobs"]);
    assert_eq!(values, [-1.0, -1.1, -1.2]);
}

#[tokio::test]
async fn similar_texts_have_close_embeddings() {
    let sim = Sim::serve(&["--runner", "pooling"]).await;
    let body = json!({"input": [
        "the cat sits on the mat", "a cat sits on a mat", "stock prices fell again today",
    ]});
    let answer = post(&sim, "/v1/embeddings", &body).await;
    let vector = |index: usize| floats(&answer["data"][index]["embedding"]);
    let cosine =
        |a: usize, b: usize| -> f64 { vector(a).iter().zip(vector(b)).map(|(a, b)| a * b).sum() };
    assert!((cosine(0, 0) - 1.0).abs() < 1e-5);
    assert!(cosine(0, 1) > 0.5 && cosine(0, 2) < 0.4, "{} {}", cosine(0, 1), cosine(0, 2));
}
