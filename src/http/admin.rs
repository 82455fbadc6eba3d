//! `/admin/config` and `/fake_metrics`: what an operator may change while the server runs.
//!
//! Source: llm-d-inference-sim `pkg/llm-d-inference-sim/admin.go`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::app::App;
use super::omni::Pictures;
use super::vllm::{answered, ok};
use super::{body, error, fault};
use crate::metrics::Fake;
use crate::service::Command;
use crate::wire::fault::{Fault, Kind};

/// `GET /admin/config`: all flags with their values, keys and tokens hidden.
pub(super) async fn show(State(app): State<Arc<App>>) -> Response<Body> {
    answered(async {
        let loaded = app.loaded.as_ref().ok_or_else(fixed)?.lock();
        Ok(ok(&Value::Object(hidden(loaded.to_json()))))
    })
    .await
}

/// `POST /admin/config`: a part of the configuration; all of it counts or nothing.
pub(super) async fn change(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    answered(async {
        let bytes = body::read(&app, request.into_body()).await?;
        let update: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|error| {
            Fault::bad_request(format!(
                "failed to read and parse the configuration, {error}"
            ))
        })?;
        let mut loaded = app.loaded.as_ref().ok_or_else(fixed)?.lock();
        let new = loaded
            .tuned(&update)
            .map_err(|error| Fault::bad_request(error.to_string()))?;
        if let Some(fake) = update.get("fake-metrics").filter(|fake| !fake.is_null()) {
            set_fake(&app, fake).map_err(Fault::bad_request)?;
        }
        let delays = Box::new(new.config.engine.delays.clone());
        app.service.command(&Command::Delays(delays));
        app.faults.store(Arc::new(fault::plan(&new.config)));
        app.pictures.store(Arc::new(Pictures::of(&new.config)));
        *loaded = new;
        Ok(ok(&Value::Object(hidden(loaded.to_json()))))
    })
    .await
}

/// `POST /fake_metrics`: a part of the fake metrics.
pub(super) async fn fake_metrics(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    answered(async {
        let failed = |text: String| Fault::new(500, Kind::InternalServer, text);
        let bytes = body::read(&app, request.into_body()).await?;
        let update: Value =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        match &app.loaded {
            // Through the configuration, so that `/admin/config` shows it too.
            Some(loaded) => {
                let mut loaded = loaded.lock();
                let mut whole = Map::new();
                whole.insert("fake-metrics".to_owned(), update.clone());
                let new = loaded.tuned(&whole).map_err(|e| failed(e.to_string()))?;
                set_fake(&app, &update).map_err(failed)?;
                *loaded = new;
            }
            None => set_fake(&app, &update).map_err(failed)?,
        }
        Ok(error::empty(StatusCode::NO_CONTENT))
    })
    .await
}

fn set_fake(app: &App, update: &Value) -> Result<(), String> {
    let fake = Fake::from_value(update.clone()).map_err(|error| error.to_string())?;
    app.metrics
        .update_fake(&fake)
        .map_err(|error| error.to_string())
}

/// A server that was started without its flags at hand.
fn fixed() -> Fault {
    Fault::new(
        501,
        Kind::NotImplemented,
        "this server was started without a tunable configuration",
    )
}

/// Nobody reads a secret here.
fn hidden(mut flags: Map<String, Value>) -> Map<String, Value> {
    for key in ["api-key", "hf-token"] {
        if let Some(value) = flags
            .get_mut(key)
            .filter(|v| !v.is_null() && **v != json!(""))
        {
            *value = "***".into();
        }
    }
    flags
}
