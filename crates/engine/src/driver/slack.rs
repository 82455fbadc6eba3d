/// Makes sleeps of this thread end at their instant. Linux otherwise ends a sleep up to 50 us late
/// to gather wake-ups (`PR_SET_TIMERSLACK`, prctl(2)); threads of real-time priority never do.
pub fn wake_promptly() {
    #[cfg(target_os = "linux")]
    {
        // A refusal costs those 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}
