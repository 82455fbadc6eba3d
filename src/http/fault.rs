//! Failures that a header asks for or chance deals out, before anything of a request is checked.

use std::sync::atomic::Ordering;

use axum::http::HeaderMap;

use super::app::App;
use crate::config::{Config, FailureType};
use crate::fault::{Failure, Plan};
use crate::wire::fault::{Fault, Kind};

/// Fails a request that is to fail.
///
/// # Errors
/// The failure of the header `X-Return-Error`, else the one drawn.
pub(in crate::http) fn inject(
    app: &App,
    headers: &HeaderMap,
    model: Option<&str>,
) -> Result<(), Fault> {
    if let Some(asked) = headers.get("x-return-error") {
        let text = String::from_utf8_lossy(asked.as_bytes());
        let code: Option<u16> = text.trim().parse().ok().filter(|c| (100..1000).contains(c));
        return Err(match code {
            Some(code) => Fault::new(
                code,
                kind(code),
                format!("Simulated error triggered by X-Return-Error header (code {code})"),
            ),
            None => Fault::bad_request(format!(
                "Invalid X-Return-Error header value {text:?}: must be an integer"
            )),
        });
    }
    let plan = app.faults.load();
    if plan.rate == 0 {
        return Ok(());
    }
    let number = app.drawn.fetch_add(1, Ordering::Relaxed);
    let seed = app.service.settings().seed;
    let Some(failure) = plan.decide(seed, number) else {
        return Ok(());
    };
    let named = model.filter(|name| !name.is_empty());
    let model = named.unwrap_or(app.service.models.displayed());
    let status = failure.status();
    Err(Fault {
        param: failure.param().map(str::to_owned),
        ..Fault::new(status, kind(status), failure.message(model))
    })
}

/// What the configuration says about failures.
pub(super) fn plan(config: &Config) -> Plan {
    let types = match config.faults.types.as_slice() {
        [] => &FailureType::ALL,
        types => types,
    };
    let failures = types.iter().map(|failure| match failure {
        FailureType::RateLimit => Failure::RateLimit,
        FailureType::InvalidApiKey => Failure::InvalidApiKey,
        FailureType::ContextLength => Failure::ContextLength,
        FailureType::ServerError => Failure::ServerError,
        FailureType::InvalidRequest => Failure::InvalidRequest,
        FailureType::ModelNotFound => Failure::ModelNotFound,
    });
    Plan {
        rate: config.faults.rate,
        failures: failures.collect(),
    }
}

/// llm-d's `type` of a status.
fn kind(status: u16) -> Kind {
    match status {
        400 => Kind::BadRequest,
        401 => Kind::Authentication,
        403 => Kind::PermissionDenied,
        404 => Kind::NotFound,
        422 => Kind::UnprocessableEntity,
        429 => Kind::RateLimit,
        500.. => Kind::InternalServer,
        _ => Kind::ApiConnection,
    }
}
