# The Homebrew formula, for Linux: the program of a release, with its manual pages and completions.
class Downshift < Formula
  desc "Training cockpit for the terminal that keeps a run alive"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on :linux

  on_intel do
    url "@REPOSITORY@/releases/download/v@VERSION@/downshift-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
    sha256 "@SHA256_X86_64@"
  end

  on_arm do
    url "@REPOSITORY@/releases/download/v@VERSION@/downshift-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
    sha256 "@SHA256_AARCH64@"
  end

  def install
    bin.install "downshift"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/downshift.bash" => "downshift"
    zsh_completion.install "completions/downshift.zsh" => "_downshift"
    fish_completion.install "completions/downshift.fish"
  end

  test do
    (testpath/"train.log").write("torch.cuda.OutOfMemoryError: CUDA out of memory.\n")
    assert_match "device_out_of_memory", shell_output("#{bin}/downshift triage train.log")
  end
end
