//! Vectors, scores, ranks, classes: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/pooling/`.

use serde_json::json;

use super::golden;
use super::sim::Sim;

#[tokio::test]
async fn vectors() {
    let cuts = r#"{"is_matryoshka":true}"#;
    let sim = Sim::serve(&["--task", "embed", "--hf-overrides", cuts]).await;
    golden::posts(
        &sim,
        "/v1/embeddings",
        &[
            (
                "embeddings",
                json!({"input": ["Hi", "Ho"], "dimensions": 4}),
            ),
            (
                "embeddings-base64",
                json!({"input": "Hi", "dimensions": 4, "encoding_format": "base64"}),
            ),
            (
                "embeddings-refused",
                json!({"input": "Hi", "dimensions": 0}),
            ),
        ],
    )
    .await;
    let body = json!({"texts": ["Hi"], "input_type": "search_query", "embedding_types": ["float", "binary"], "output_dimension": 8});
    golden::posts(&sim, "/v2/embed", &[("embed-v2", body)]).await;
    let query = json!({"text_1": "red", "text_2": ["red", "blue"]});
    golden::posts(&sim, "/score", &[("score", query)]).await;
    let documents = json!({"query": "red", "documents": ["blue", "red"], "top_n": 1});
    golden::posts(&sim, "/rerank", &[("rerank", documents)]).await;
}

#[tokio::test]
async fn classes() {
    let sim = Sim::serve(&["--task", "classify"]).await;
    let body = json!({"input": ["Hi", "Ho"]});
    golden::posts(&sim, "/classify", &[("classify", body.clone())]).await;
    golden::posts(&sim, "/pooling", &[("pooling", body)]).await;
}
