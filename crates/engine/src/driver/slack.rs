/// Sets the timer slack of this thread to its minimum (`PR_SET_TIMERSLACK`, prctl(2)).
///
/// By default Linux ends sleeps up to 50 us late to batch wakeups, except for threads with
/// real-time priority.
pub fn minimize_timer_slack() {
    #[cfg(target_os = "linux")]
    {
        // An error keeps the default slack of 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}
