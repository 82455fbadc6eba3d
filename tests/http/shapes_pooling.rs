//! Vectors, scores, ranks, classes: every shape of an answer. Source of the shapes: vLLM 0.33
//! `entrypoints/pooling/`.

use serde_json::{Map, json};

use super::golden;
use super::sim::Sim;

#[tokio::test]
async fn embedding_response_shapes() {
    let cuts = r#"{"is_matryoshka":true}"#;
    let sim = Sim::serve(&["--task", "embed", "--hf-overrides", cuts]).await;
    golden::posts(
        &sim,
        "/v1/embeddings",
        &[
            ("embeddings", json!({"input": ["Hi", "Ho"], "dimensions": 4})),
            (
                "embeddings-base64",
                json!({"input": "Hi", "dimensions": 4, "encoding_format": "base64"}),
            ),
            ("embeddings-refused", json!({"input": "Hi", "dimensions": 0})),
        ],
    )
    .await;
    let body =
        json!({"texts": ["Hi"], "embedding_types": ["float", "binary"], "output_dimension": 8});
    golden::posts(&sim, "/v2/embed", &[("embed-v2", body)]).await;
    let query = json!({"text_1": "red", "text_2": ["red", "blue"]});
    golden::posts(&sim, "/score", &[("score", query)]).await;
    let documents = json!({"query": "red", "documents": ["blue", "red"], "top_n": 1});
    golden::posts(&sim, "/rerank", &[("rerank", documents)]).await;
}

#[tokio::test]
async fn classification_response_shapes() {
    let sim = Sim::serve(&["--task", "classify"]).await;
    let body = json!({"input": ["Hi", "Ho"]});
    golden::posts(&sim, "/classify", &[("classify", body.clone())]).await;
    golden::posts(&sim, "/pooling", &[("pooling", body)]).await;
}

#[tokio::test]
async fn batch_embedding_response_shapes() {
    let cuts = r#"{"is_matryoshka":true}"#;
    let sim = Sim::serve(&["--task", "embed", "--hf-overrides", cuts]).await;
    let texts = |count| -> Vec<String> { (0..count).map(|n| format!("tëxt \n{n}")).collect() };
    let embedded = async |count, more| {
        let mut body = json!({"input": texts(count), "dimensions": 2});
        body.as_object_mut().unwrap().extend(more);
        sim.post("/v1/embeddings", &body).await.json()
    };
    let few = embedded(20, Map::new()).await;
    // The body of so many is long.
    let many = embedded(6000, Map::new()).await;
    let rows = many["data"].as_array().unwrap();
    assert_eq!(rows.len(), 6000);
    assert_eq!(rows[..20], *few["data"].as_array().unwrap());
    let unread = Map::from_iter([("encoding_format".to_owned(), json!("x"))]);
    assert_eq!(embedded(6000, unread).await["error"]["code"], 400);
}
