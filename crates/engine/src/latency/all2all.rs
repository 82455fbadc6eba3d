//! Models the time to send tokens to the GPUs of their experts and back.

/// Kind of the kernels for the token exchange of expert-parallel ranks (`--all2all-backend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum All2AllBackend {
    /// NCCL gathers the tokens and scatters the sums; the default of vLLM.
    #[default]
    AllGatherReduceScatter,
    /// Kernels for many tokens, which use streaming multiprocessors (DeepEP high throughput).
    HighThroughput,
    /// Kernels for few tokens, which write to the memory of other GPUs (DeepEP low latency).
    LowLatency,
}

impl All2AllBackend {
    /// Returns the kind of kernels that a value of `--all2all-backend` selects.
    pub fn from_all2all_backend_flag(flag_value: &str) -> Self {
        match flag_value {
            "deepep_low_latency" | "mori_low_latency" | "nixl_ep" => Self::LowLatency,
            "deepep_high_throughput" | "mori_high_throughput" | "flashinfer_all2allv" => {
                Self::HighThroughput
            }
            name if name.starts_with("flashinfer_nvlink") => Self::HighThroughput,
            _ => Self::AllGatherReduceScatter,
        }
    }
}

/// Network between the GPUs of a deployment: NVLink or PCIe in a node, network cards between nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct InterconnectFabric {
    /// Number of GPUs of a node, or of a rack that NVLink spans.
    pub gpus_per_node: u32,
    /// Rates of the low-latency and of the high-throughput kernels that exchange experts' tokens
    /// inside a node, in GB/s per GPU.
    pub kernel_gbs: (f64, f64),
}

/// Bandwidth of a GPU's network card, in GB/s (400 Gbit/s).
const NETWORK_GBS: f64 = 50.0;
/// Delay of a message through the network, in us. Assumed.
const NETWORK_DELAY_US: f64 = 20.0;
/// Minimum time to dispatch and combine tokens, in us: by low-latency and by high-throughput
/// kernels. Tables of vLLM 0.24 over eight GPUs (aisimulate 0.13, `moe_a2a_perf`) hold 91 to 125
/// and 310 to 370 us.
const KERNEL_FLOOR_US: (f64, f64) = (90.0, 300.0);
/// Rates of the low-latency kernels that exchange experts' tokens over 400 Gbit/s network cards, in
/// GB/s per GPU. Each rate comes with the maximum number of GPUs to which it applies.
///
/// **Source:** DeepEP `docs/legacy.md`: 128 tokens of 7168 to eight experts take 313 to 561 us.
const NETWORK_LOW_LATENCY_GBS: [(u32, f64); 4] =
    [(16, 99.0), (32, 65.0), (64, 55.0), (u32::MAX, 47.0)];

impl InterconnectFabric {
    fn nodes(&self, gpus: u32) -> f64 {
        f64::from(gpus.div_ceil(self.gpus_per_node.max(1)).max(1))
    }

    /// Returns the time that messages between nodes add to an all-reduce of `bytes`, in us. Each
    /// GPU of a node sends its part.
    pub(super) fn network_all_reduce_us(&self, gpus: u32, bytes: f64) -> f64 {
        let nodes = self.nodes(gpus);
        if nodes <= 1.0 {
            return 0.0;
        }
        let part = bytes / f64::from(gpus.min(self.gpus_per_node));
        2.0 * ((nodes - 1.0) / nodes * part / (NETWORK_GBS * 1e3) + NETWORK_DELAY_US)
    }

    /// Returns the time to dispatch `tokens` of one GPU to `chosen` experts on `gpus` GPUs and to
    /// combine their results, in us.
    pub(super) fn low_latency_all2all_us(
        &self,
        gpus: u32,
        tokens: f64,
        chosen: f64,
        hidden: f64,
    ) -> f64 {
        // Each expert gets a token in fp8 and returns it in bf16.
        let bytes = tokens * chosen * hidden * 3.0;
        let network = NETWORK_LOW_LATENCY_GBS.iter().find(|(most, _)| gpus <= *most);
        let rate = match network {
            Some((_, rate)) if self.nodes(gpus) > 1.0 => rate.min(self.kernel_gbs.0),
            _ => self.kernel_gbs.0,
        };
        KERNEL_FLOOR_US.0 + bytes / (rate * 1e3)
    }

    /// Returns the time in us to dispatch `tokens` of one GPU and to combine their results with
    /// kernels for many tokens. A token is sent once to each GPU, and once to each other node.
    pub(super) fn high_throughput_all2all_us(
        &self,
        gpus: u32,
        tokens: f64,
        chosen: f64,
        hidden: f64,
    ) -> f64 {
        let targets = |places: f64| places * (1.0 - (1.0 - 1.0 / places).powf(chosen));
        let nodes = self.nodes(gpus);
        let bytes = tokens * hidden * 4.0;
        let inside = f64::from(gpus.min(self.gpus_per_node).max(1));
        let inside = bytes * targets(inside) / (self.kernel_gbs.1 * 1e3);
        let between = bytes * targets(nodes) * (nodes - 1.0) / nodes / (NETWORK_GBS * 1e3);
        KERNEL_FLOOR_US.1 + inside.max(between)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPPER: InterconnectFabric =
        InterconnectFabric { gpus_per_node: 8, kernel_gbs: (155.0, 280.0) };

    /// Compares with tables of vLLM 0.24 on one H200 node and with DeepEP's own figures.
    #[test]
    fn kernel_times_are_near_those_measured() {
        let low = |gpus, tokens| HOPPER.low_latency_all2all_us(gpus, tokens, 8.0, 7168.0);
        let high = |tokens| HOPPER.high_throughput_all2all_us(8, tokens, 8.0, 7168.0);
        for (predicted, measured) in [
            (low(8, 1.0), 97.9),
            (low(8, 64.0), 162.9),
            (low(8, 128.0), 212.7),
            (low(8, 256.0), 374.8),
            (low(16, 128.0), 313.0),
            (low(32, 128.0), 428.0),
            (low(64, 128.0), 487.0),
            (low(256, 128.0), 554.0),
            (high(16.0), 356.7),
            (high(1024.0), 795.9),
            (high(8192.0), 4666.9),
            (high(32_768.0), 18_244.9),
        ] {
            let off: f64 = predicted / measured - 1.0;
            assert!(off.abs() < 0.15, "{predicted} {measured}");
        }
    }

    #[test]
    fn only_messages_between_nodes_take_the_network() {
        assert_eq!(HOPPER.network_all_reduce_us(8, 1e6), 0.0);
        // Half of an eighth, there and back, at 50 GB/s.
        assert!((HOPPER.network_all_reduce_us(16, 8e6) - (20.0 + 40.0)).abs() < 1e-9);
        let rack = InterconnectFabric { gpus_per_node: 72, ..HOPPER };
        assert_eq!(rack.network_all_reduce_us(72, 1e6), 0.0);
    }

    #[test]
    fn backends_are_known_by_their_flag() {
        let of = All2AllBackend::from_all2all_backend_flag;
        assert_eq!(of("deepep_low_latency"), All2AllBackend::LowLatency);
        assert_eq!(of("deepep_high_throughput"), All2AllBackend::HighThroughput);
        assert_eq!(of("allgather_reducescatter"), All2AllBackend::default());
    }
}
