//! Samples the gauges of workers over time, in bounded memory.

use crate::outcome::{PoolRole, WorkerSample};

const MAX_POINTS_PER_WORKER: usize = 1024;

/// Sampled gauges of all workers over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerTimeline {
    /// Gauge series of each worker, in order of worker number, prefill workers first.
    pub tracks: Vec<WorkerSampleTrack>,
}

/// Gauges of one worker, averaged over consecutive time intervals.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSampleTrack {
    /// Index, in its pool, of the worker whose gauges are averaged.
    pub worker: u32,
    /// Pool of the worker whose gauges are averaged.
    pub pool: PoolRole,
    /// Averages of the worker's gauges over consecutive intervals.
    pub points: Vec<WorkerTimelinePoint>,
    per_point: u32,
    open: u32,
}

/// Averages of a worker's gauges over one time interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WorkerTimelinePoint {
    /// End of the time interval over which gauges are averaged, in seconds.
    pub at: f64,
    /// Mean number of running sequences on the worker.
    pub running: f64,
    /// Mean number of waiting sequences on the worker.
    pub waiting: f64,
    /// Mean fraction of the worker's KV cache blocks in use over the interval, 0 to 1.
    pub kv_usage: f64,
    /// Mean number of the worker's KV cache blocks in use.
    pub kv_blocks: f64,
    /// Mean number of preemptions on the worker since the start of the replay.
    pub preemptions: f64,
}

impl WorkerTimeline {
    pub(super) fn push_worker_sample(&mut self, sample: &WorkerSample) {
        let key = (sample.pool, sample.worker);
        let place = self.tracks.binary_search_by_key(&key, |track| (track.pool, track.worker));
        let place = match place {
            Ok(place) => place,
            Err(place) => {
                let track = WorkerSampleTrack {
                    worker: sample.worker,
                    pool: sample.pool,
                    points: Vec::new(),
                    per_point: 1,
                    open: 0,
                };
                self.tracks.insert(place, track);
                place
            }
        };
        self.tracks[place].push(sample);
    }
}

impl WorkerSampleTrack {
    fn push(&mut self, sample: &WorkerSample) {
        if self.open == 0 {
            if self.points.len() == MAX_POINTS_PER_WORKER {
                self.halve_resolution();
            }
            self.points.push(WorkerTimelinePoint::default());
        }
        let n = f64::from(self.open);
        let mean = |old: f64, new: f64| (old * n + new) / (n + 1.0);
        if let Some(point) = self.points.last_mut() {
            *point = WorkerTimelinePoint {
                at: sample.at.as_secs_f64(),
                running: mean(point.running, sample.running.into()),
                waiting: mean(point.waiting, sample.waiting.into()),
                kv_usage: mean(point.kv_usage, sample.kv_usage),
                kv_blocks: mean(point.kv_blocks, sample.kv_usage * f64::from(sample.kv_blocks)),
                preemptions: sample.preemptions as f64,
            };
        }
        self.open = (self.open + 1) % self.per_point;
    }

    fn halve_resolution(&mut self) {
        let half = |a: f64, b: f64| (a + b) / 2.0;
        let pairs = self.points.chunks(2).map(|pair| match pair {
            [a, b] => WorkerTimelinePoint {
                at: b.at,
                running: half(a.running, b.running),
                waiting: half(a.waiting, b.waiting),
                kv_usage: half(a.kv_usage, b.kv_usage),
                kv_blocks: half(a.kv_blocks, b.kv_blocks),
                preemptions: b.preemptions,
            },
            _ => pair[0],
        });
        self.points = pairs.collect();
        self.per_point *= 2;
    }
}
