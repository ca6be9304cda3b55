# Builds downshift from this repository: `nix run ./packaging -- triage train.log`.
# Without the trainer, which needs a tensor library and ten minutes; `.#with-trainer` has it.
{
  description = "Training cockpit for the terminal that keeps a run alive";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      build =
        pkgs: features:
        pkgs.rustPlatform.buildRustPackage {
          pname = "downshift";
          version = (builtins.fromTOML (builtins.readFile ../Cargo.toml)).package.version;
          src = ../.;
          cargoLock.lockFile = ../Cargo.lock;
          buildNoDefaultFeatures = true;
          buildFeatures = features;
          nativeBuildInputs = [ pkgs.installShellFiles ];
          # The tests start keepers, tmux and scripts, which a sandbox does not have.
          doCheck = false;
          postInstall = ''
            $out/bin/downshift man man
            installManPage man/*.1
            for shell in bash zsh fish; do
              $out/bin/downshift completions $shell > downshift.$shell
            done
            installShellCompletion downshift.{bash,zsh,fish}
          '';
          meta = {
            license = [ pkgs.lib.licenses.mit pkgs.lib.licenses.asl20 ];
            mainProgram = "downshift";
            platforms = systems;
          };
        };
      each = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in
    {
      packages = each (pkgs: {
        default = build pkgs [ ];
        with-trainer = build pkgs [ "train" "cuda" ];
      });
    };
}
