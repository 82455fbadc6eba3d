use super::Gpu;

/// Describes the bandwidth between a GPU and pinned host memory, in GB/s per direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostLinkBandwidth {
    /// Name of the link between GPU and host, such as `PCIe gen 5 x16`.
    pub name: &'static str,
    /// Bandwidth from the GPU to the host, in GB/s.
    pub to_host: f64,
    /// Bandwidth from the host to the GPU, in GB/s.
    pub to_device: f64,
}

const fn host_link(name: &'static str, to_host: f64, to_device: f64) -> HostLinkBandwidth {
    HostLinkBandwidth { name, to_host, to_device }
}

impl HostLinkBandwidth {
    /// Link with typical copy rates of PCIe gen 5; the default for unknown GPUs.
    pub const PCIE_5: Self = host_link("PCIe gen 5 x16", 52.0, 52.0);
    const PCIE_4: Self = host_link("PCIe gen 4 x16", 24.0, 24.0);
    const NVLINK_C2C: Self = host_link("NVLink-C2C", 350.0, 380.0);
    /// Host link with half of an NVLink-C2C's bandwidth per GPU, for systems in which two GPUs
    /// share a CPU.
    const HALF_NVLINK_C2C: Self = host_link("half an NVLink-C2C", 175.0, 190.0);

    /// Returns the host link of a GPU, by the GPU's name.
    pub fn host_link_of_gpu(gpu: &Gpu) -> Self {
        let starts = |names: &[&str]| names.iter().any(|name| gpu.name.starts_with(name));
        if starts(&["GB"]) {
            Self::HALF_NVLINK_C2C
        } else if starts(&["GH"]) {
            Self::NVLINK_C2C
        } else if starts(&["A100", "L4", "RTX-6000-Ada", "RTX-4090"]) {
            Self::PCIE_4
        } else {
            Self::PCIE_5
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::find_gpu;

    #[test]
    fn host_link_follows_the_gpu_generation() {
        let rate =
            |name| find_gpu(name).map(|gpu| HostLinkBandwidth::host_link_of_gpu(gpu).to_device);
        assert_eq!(
            ["H100", "A100", "L40S", "GH200", "GB200"].map(rate),
            [Some(52.0), Some(24.0), Some(24.0), Some(380.0), Some(190.0)]
        );
    }
}
