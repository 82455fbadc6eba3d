# Template of the formula: `packaging/homebrew/fill.sh SHA256SUMS` puts in version and digests. A release has
# the filled one beside its tarballs; `brew install ./vllm-sim.rb`, or a tap, takes it.
class VllmSim < Formula
  desc "Server that from outside is a vLLM deployment, without GPU and model"
  homepage "https://github.com/vllm-sim/vllm-sim"
  version "@VERSION@"
  license "Apache-2.0"

  depends_on :linux

  on_arm do
    url "https://github.com/vllm-sim/vllm-sim/releases/download/v@VERSION@/vllm-sim-@VERSION@-aarch64-linux.tar.gz"
    sha256 "@SHA256_AARCH64@"
  end
  on_intel do
    url "https://github.com/vllm-sim/vllm-sim/releases/download/v@VERSION@/vllm-sim-@VERSION@-x86_64-linux.tar.gz"
    sha256 "@SHA256_X86_64@"
  end

  def install
    bin.install "vllm-sim"
    generate_completions_from_executable(bin/"vllm-sim", "completions", shells: [:bash, :zsh, :fish])
    (man1/"vllm-sim.1").write Utils.safe_popen_read(bin/"vllm-sim", "man")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/vllm-sim --version")
    ready = testpath/"ready.json"
    pid = spawn bin/"vllm-sim", "--model", "demo", "--port", "0", "--ready-file", ready
    begin
      sleep 0.1 until ready.exist?
      url = JSON.parse(ready.read)["servers"].first["url"]
      assert_match "demo", shell_output("curl --fail --silent #{url}/v1/models")
    ensure
      Process.kill "TERM", pid
      Process.wait pid
    end
  end
end
