use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::ReplayReport;
use super::record::RequestOutcomeRecord;

impl Serialize for ReplayReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.summary_at_top {
            true => {
                for (key, value) in &self.summary {
                    map.serialize_entry(key, value)?;
                }
            }
            false => map.serialize_entry("summary", &self.summary)?,
        }
        if let Some(run) = &self.run {
            map.serialize_entry("run", run)?;
        }
        map.serialize_entry("per_request", &RequestRecords(&self.kept))?;
        let mut coverage = json!({
            "capture_per_request": self.captured,
            "capture_planner_details": false,
            "per_request_records": self.kept.len(),
        });
        if let Some(most) = self.left_out {
            coverage["per_request_left_out_from"] = most.into();
        }
        map.serialize_entry("coverage", &coverage)?;
        map.serialize_entry("planner", &Value::Null)?;
        if self.over_time.has_worker_changes() {
            map.serialize_entry("workers_over_time", &self.over_time.workers)?;
        }
        map.end()
    }
}

/// Serializes request records one by one, so that they need not all be in memory.
struct RequestRecords<'a>(&'a [RequestOutcomeRecord]);

impl Serialize for RequestRecords<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for kept in self.0 {
            list.serialize_element(&kept.to_request_record())?;
        }
        list.end()
    }
}
