//! Images, audio and video in prompts, and images in replies.

use serde_json::{Value, json};

use super::sim::Sim;

const CHAT: &str = "/v1/chat/completions";
/// The header of a PNG of 280 × 56 pixels: 10 × 2 tokens of 28 × 28 pixels.
const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAARgAAAA4CAIAAAAAAAAA";

fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn chat(parts: &[Value]) -> Value {
    let text = json!({"type": "text", "text": "What is this?"});
    let content: Vec<&Value> = [&text].into_iter().chain(parts).collect();
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4})
}

async fn usage(sim: &Sim, body: &Value) -> Value {
    let answer = sim.post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["usage"].clone()
}

#[tokio::test]
async fn media_token_counts_follow_model_rules() {
    let sim =
        Sim::serve(&["--mm-tokens-per-item", "{\"audio\": 30}", "--enable-prompt-tokens-details"])
            .await;
    let text = usage(&sim, &chat(&[])).await["prompt_tokens"].clone();
    let audio = json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}});
    let seen = usage(&sim, &chat(&[image(PNG), audio])).await;
    let more = seen["prompt_tokens"].as_u64().unwrap() - text.as_u64().unwrap();
    assert!((50..=52).contains(&more), "text may split at the marks: {more}");
    let details = &seen["prompt_tokens_details"]["multimodal_tokens"];
    assert_eq!(*details, json!({"image": 20, "audio": 30}));
}

#[tokio::test]
async fn the_cache_distinguishes_images() {
    let sim =
        Sim::serve(&["--mm-tokens-per-item", "{\"image\": 64}", "--enable-prompt-tokens-details"])
            .await;
    let cached = async |url: &str| {
        let usage = usage(&sim, &chat(&[image(url)])).await;
        usage["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(cached("http://a/1.png").await, Some(0));
    let again = cached("http://a/1.png").await.unwrap();
    assert!(again >= 64, "{again}");
    let other = cached("http://a/2.png").await.unwrap();
    assert!(other < again - 48, "only the text before it is shared: {other}");
    assert_eq!(sim.metric("vllm:mm_cache_queries_total").await, 3.0);
    assert_eq!(sim.metric("vllm:mm_cache_hits_total").await, 1.0);
}

#[tokio::test]
async fn a_new_picture_is_encoded_before_its_prompt_and_a_known_one_is_not() {
    let sim = Sim::serve(&[
        "--gpu",
        "H100",
        "--mm-tokens-per-item",
        "{\"image\": 1000}",
        "--no-enable-prefix-caching",
        "--dev-mode",
    ])
    .await;
    let mut before = 0.0;
    let mut prefill_ms = async |url: &str| {
        usage(&sim, &chat(&[image(url)])).await;
        let all = sim.metric("vllm:request_prefill_time_seconds_sum").await;
        // As scheduled, whatever the machine was busy with.
        (std::mem::replace(&mut before, all) - all).abs() * 1e3
    };
    let new = prefill_ms("http://a/1.png").await;
    let known = prefill_ms("http://a/1.png").await;
    let other = prefill_ms("http://a/2.png").await;
    assert_eq!(sim.poke("/reset_mm_cache").await.status, 200);
    let processed = prefill_ms("http://a/1.png").await;
    assert_eq!(sim.poke("/reset_encoder_cache").await.status, 200);
    let forgotten = prefill_ms("http://a/1.png").await;
    // 10 us for each embedding, where config.json tells no encoder's size.
    let more = [new, other, processed, forgotten].map(|ms| ((ms - known) * 1e3).round() as i64);
    assert_eq!(more, [10_000, 10_000, 0, 10_000]);
    assert_eq!(sim.metric("vllm:mm_cache_hits_total").await, 2.0);
}

#[tokio::test]
async fn media_beyond_limits_is_rejected() {
    let sim = Sim::serve(&[
        "--mm-tokens-per-item",
        "{\"image\": 5}",
        "--limit-mm-per-prompt",
        "{\"image\": 1}",
    ])
    .await;
    let refused = async |parts: &[Value]| {
        let answer = sim.post(CHAT, &chat(parts)).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        let message = answer.json()["error"]["message"].clone();
        message.as_str().unwrap_or_default().to_owned()
    };
    let two = refused(&[image("http://a/1"), image("http://a/2")]).await;
    assert!(two.starts_with("At most 1 image(s) may be provided in one prompt."), "{two}");
    let file = refused(&[image("file:///etc/passwd")]).await;
    assert!(file.starts_with("Cannot load local files"), "{file}");
    let odd = refused(&[image("ftp://a/b")]).await;
    assert!(odd.starts_with("The URL must be either a HTTP, data or file URL."), "{odd}");
    let plain = Sim::serve(&[]).await;
    let answer = plain.post(CHAT, &chat(&[image("http://a/1")])).await;
    assert!(answer.text().contains("is not a multimodal model"), "{}", answer.text());
}

#[tokio::test]
async fn rendered_prompt_has_media_placeholders() {
    let flags = ["--mm-tokens-per-item", "{\"image\": 7}", "--enable-scale-out"];
    let sim = Sim::serve(&flags).await;
    let body = chat(&[image("http://a/1")]);
    let rendered = sim.post("/v1/chat/completions/render", &body).await.json();
    let place = &rendered["features"]["mm_placeholders"]["image"][0];
    assert_eq!(place["length"], 7, "{rendered}");
    let start = place["offset"].as_u64().unwrap() as usize;
    let ids = rendered["token_ids"].as_array().unwrap();
    assert!(ids[start..start + 7].iter().all(|id| *id == ids[start]), "{rendered}");
    let mut generate = rendered.clone();
    generate["return_token_ids"] = true.into();
    generate["sampling_params"]["max_tokens"] = 3.into();
    let answer = sim.post("/inference/v1/generate", &generate).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["mm_placeholders"], rendered["features"]["mm_placeholders"]);
}

#[tokio::test]
async fn an_omni_server_sends_a_picture_when_asked() {
    let sim = Sim::llmd(&["--omni"]).await;
    let mut body = chat(&[]);
    let asked = ["X-Send-Image: true"];
    let content = async |headers: &[&str], body: &Value| {
        let answer = sim.post_with(CHAT, headers, body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0]["message"]["content"].clone()
    };
    let blocks = content(&asked, &body).await;
    assert_eq!(blocks[0]["type"], "text", "{blocks}");
    let url = blocks[1]["image_url"]["url"].as_str().unwrap();
    assert!(url.starts_with("data:image/png;base64,"), "{url}");
    assert!(content(&[], &body).await.is_string());
    let odd = sim.post_with(CHAT, &["X-Send-Image: perhaps"], &body).await;
    assert_eq!(odd.status, 400);
    body["stream"] = true.into();
    let events = sim.post_with(CHAT, &asked, &body).await.text();
    let image = events.find("\"modality\":\"image\"").expect("an image");
    let finish = events.find("\"finish_reason\":\"").expect("an end");
    let (before, after) = events.split_at(image);
    assert!(image < finish && before.contains("{\"type\":\"text\""), "{events}");
    let (said, nothing) = ("{\"type\":\"text\"", "{\"type\":\"text\",\"text\":\"\"}");
    assert_eq!(after.matches(said).count(), after.matches(nothing).count(), "no text follows");
}

#[tokio::test]
async fn encoder_transfers_embeddings_to_prefill() {
    let sim = Sim::llmd(&["--mm-encoder-only"]).await;
    let answer = sim.post(CHAT, &chat(&[image("http://a/1")])).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "!!!!", "{answer}");
    assert_eq!(choice["finish_reason"], "length");
    let items = answer["ec_transfer_params"].as_object().unwrap();
    let (name, item) = items.iter().next().unwrap();
    assert!(name.starts_with("sim_img_0_"), "{name}");
    assert_eq!(item["size_bytes"], 2_359_296);
    let free = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let answer = sim.post(CHAT, &free).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "!");
}
