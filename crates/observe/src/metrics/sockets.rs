//! Metrics of the WebSocket connections of `/v1/realtime`.
//!
//! **Source:** vLLM 0.33 `entrypoints/speech_to_text/realtime/metrics.py`.

use std::sync::Arc;

use super::buckets;
use super::cell::{Counter, Gauge, Histogram};
use super::families as f;
use super::page::{Labels, PageBuilder, Series};

pub(super) struct WebSocketMetrics {
    active: Arc<Gauge>,
    total: Arc<Counter>,
    duration: Arc<Histogram>,
}

impl WebSocketMetrics {
    pub(super) fn new() -> Self {
        Self {
            active: Arc::default(),
            total: Arc::default(),
            duration: Arc::new(Histogram::new(buckets::SOCKET)),
        }
    }

    pub(super) fn register(&self, page: &mut PageBuilder) {
        let labels = Labels::default();
        page.gauge(f::SOCKETS_ACTIVE, &[Series::new(labels.clone(), &self.active)]);
        page.counter(f::SOCKETS_TOTAL, vec![Series::new(labels.clone(), &self.total)]);
        page.histogram(f::SOCKET_DURATION, &[(labels, self.duration.clone())]);
    }

    pub(super) fn opened(&self) {
        self.active.add(1.0);
        self.total.add(1);
    }

    pub(super) fn closed(&self, seconds: f64) {
        self.active.add(-1.0);
        self.duration.observe(seconds);
    }
}
