use std::collections::VecDeque;
use std::sync::Arc;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::latency::RooflineModel;
use vllm_sim_engine::lock_step::RankLockStep;
use vllm_sim_engine::sched::vllm::VllmScheduler;
use vllm_sim_engine::{Outbox, Scheduler, SchedulerEvent, SeqId, Sequence};

use super::spec::RecordedRun;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClientRequestTiming {
    pub(crate) sent: SimTime,
    pub(crate) first: SimTime,
    pub(crate) last: SimTime,
    pub(crate) complete: bool,
}

pub(crate) struct SimulatedBenchClient<'a> {
    run: &'a RecordedRun,
    engines: Vec<VllmScheduler>,
    /// Synchronizes the steps of data-parallel engines; `None` if they run independently.
    lock_step: Option<RankLockStep>,
    roofline: &'a RooflineModel,
    /// Maximum number of requests that run in the engines concurrently.
    places: usize,
    timeouts: VecDeque<(SimTime, usize)>,
    next: usize,
    /// Index of the load stage in progress, if each stage begins only after all responses of the
    /// previous one.
    stage: usize,
    /// Start time of the load stage in progress.
    stage_start: SimTime,
    in_flight: usize,
    seen: Vec<ClientRequestTiming>,
    over: Vec<bool>,
}

impl<'a> SimulatedBenchClient<'a> {
    pub(crate) fn new(
        run: &'a RecordedRun,
        engines: Vec<VllmScheduler>,
        roofline: &'a RooflineModel,
    ) -> Self {
        Self {
            places: engines.len() * run.engine.max_num_seqs as usize,
            run,
            lock_step: engines[0].config().lock_step.then(RankLockStep::default),
            engines,
            roofline,
            timeouts: VecDeque::new(),
            next: 0,
            stage: 0,
            stage_start: SimTime::ZERO,
            in_flight: 0,
            seen: vec![ClientRequestTiming::default(); run.requests.len()],
            over: vec![false; run.requests.len()],
        }
    }

    pub(crate) fn simulate_to_end(mut self) -> Vec<ClientRequestTiming> {
        let mut out = Outbox::new();
        let mut now = SimTime::ZERO;
        loop {
            self.begin_stage(now);
            let wakeups = self.engines.iter().filter_map(Scheduler::next_wakeup);
            let due = wakeups
                .chain(self.timeouts.front().map(|&(due, _)| due))
                .chain(self.next_send_time(now))
                .min();
            let Some(due) = due else {
                return self.seen;
            };
            now = now.max(due);
            for engine in &mut self.engines {
                if engine.next_wakeup().is_some_and(|due| due <= now) {
                    engine.advance(now, &mut out);
                }
            }
            self.collect_events(&mut out);
            self.abort_timed_out(now, &mut out);
            self.send_due_requests(now, &mut out);
            self.collect_events(&mut out);
            let mut wakeups = self.engines.iter().filter_map(Scheduler::next_wakeup);
            if let Some(lock_step) = &mut self.lock_step
                && wakeups.all(|due| due > now)
            {
                lock_step.synchronize_rank_steps(now, &mut self.engines, |engine| Some(engine));
            }
        }
    }

    /// Begins the next load stage once all responses have arrived, if the run's stages wait for the
    /// previous one.
    fn begin_stage(&mut self, now: SimTime) {
        if !self.run.drains {
            return;
        }
        let next = self.run.requests.get(self.next).map(|request| request.stage);
        if let Some(stage) = next.filter(|stage| *stage != self.stage && self.in_flight == 0) {
            (self.stage, self.stage_start) = (stage, now);
        }
    }

    /// Returns the time at which the client sends the next request, or `None` if it waits for a
    /// response first.
    fn next_send_time(&self, now: SimTime) -> Option<SimTime> {
        let request = self.run.requests.get(self.next)?;
        let drains = self.run.drains && request.stage != self.stage;
        if self.in_flight >= self.run.max_in_flight || drains {
            return None;
        }
        Some((self.stage_start + request.at.duration_since(SimTime::ZERO)).max(now))
    }

    fn send_due_requests(&mut self, now: SimTime, out: &mut Outbox) {
        while self.next_send_time(now) == Some(now) {
            let i = self.next;
            let request = &self.run.requests[i];
            self.seen[i].sent = now;
            self.in_flight += 1;
            self.next += 1;
            let running = (self.in_flight - 1).min(self.places);
            let running = u32::try_from(running).unwrap_or(u32::MAX);
            let at = i % self.engines.len();
            let engine = &mut self.engines[at];
            let delay = self.roofline.front_end_processing_delay(request.prompt, running);
            // No request is computed before the kernels of the first one are compiled.
            let begin = self.seen[0].sent + self.run.first_use_stall;
            let seq = Sequence {
                plan: Some(Arc::clone(&request.plan)),
                front_end_delay: delay.max(begin.duration_since(now)),
                ..Sequence::new(SeqId(i as u64), request.prompt, request.output)
            };
            if engine.submit(now, seq, out).is_err() {
                self.over[i] = true;
                self.in_flight -= 1;
            }
            if let Some(timeout) = self.run.timeout {
                self.timeouts.push_back((now + timeout, i));
            }
        }
    }

    fn abort_timed_out(&mut self, now: SimTime, out: &mut Outbox) {
        while let Some(&(due, i)) = self.timeouts.front() {
            if due > now {
                break;
            }
            self.timeouts.pop_front();
            if !self.over[i] {
                let engine = i % self.engines.len();
                self.engines[engine].abort(now, SeqId(i as u64), out);
            }
        }
    }

    fn collect_events(&mut self, out: &mut Outbox) {
        for (at, event) in out.drain(..) {
            match event {
                SchedulerEvent::Tokens { id, .. } | SchedulerEvent::Decoded { id, .. } => {
                    let seen = &mut self.seen[id.0 as usize];
                    if seen.first == SimTime::ZERO {
                        seen.first = at;
                    }
                    seen.last = at;
                }
                SchedulerEvent::Ended { id, end } => {
                    self.over[id.0 as usize] = true;
                    self.seen[id.0 as usize].complete =
                        end == vllm_sim_engine::SequenceEndReason::Finished;
                    self.in_flight -= 1;
                }
                _ => {}
            }
        }
    }
}
