use super::Redactor;
use super::known::Known;
use crate::config::integrations::Notify;
use crate::store::run_dir::RunDir;
use std::fs;

/// Builds a redactor that knows a home, a machine, one variable, one secret and one unset name.
fn redactor() -> Redactor {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut known = Known::default();
    known.variables(&[
        variable("HOME", "/home/ada"),
        variable("MY_TOKEN", "abc123xyz"),
        variable("SHORT_TOKEN", "ab"),
        variable("AZURE_STORAGE_KEY", "quoted\"key"),
        variable("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/identity"),
        variable("TOKENIZERS_PARALLELISM", "disabled"),
        variable("PATH", "/usr/bin:/bin"),
    ]);
    known.host("lab-box-7");
    known.add_named_in("url: 'https://x/hook/9999'\ntoken: env:NO_SUCH_HOOK_7\n");
    Redactor::of(known)
}

#[test]
fn private_data_is_removed() {
    let redactor = redactor();
    let cases = [
        ("reading /home/ada/runs/x", "reading ~/runs/x"),
        ("/home/grace/data and C:\\Users\\Grace\\x", "/home/user/data and C:\\Users\\user\\x"),
        ("sent abc123xyz to https://x/hook/9999", "sent [removed] to https://x/[removed]"),
        ("path hook/9999", "path [removed]"),
        (r#"{"key": "quoted\"key"}"#, r#"{"key": "[removed]"}"#),
        ("kernel on lab-box-7", "kernel on [host]"),
        ("POST https://discord.com/api/webhooks/12/ab-CD_e", "POST [removed]"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [removed]"),
        ("Authorization: token x", "Authorization: token [removed]"),
        ("'Authorization': 'Basic dTpwdw==', 'a': 1", "'Authorization': 'Basic [removed]', 'a': 1"),
        (r#"curl -H "authorization: abc d" u"#, r#"curl -H "authorization: [removed]" u"#),
        ("Set-Cookie: id=abc; Path=/", "Set-Cookie: [removed]"),
        ("git clone https://me:pw@host/x", "git clone https://[removed]@host/x"),
        ("redis://:p@ss@host:6379/0", "redis://[removed]@host:6379/0"),
        ("https://0123456789abcdef0123@host/x", "https://[removed]@host/x"),
        ("AWS_SECRET_ACCESS_KEY x", "AWS_SECRET_ACCESS_KEY [removed]"),
        ("export AWS_SECRET_ACCESS_KEY=wJalr/XUtn+x", "export AWS_SECRET_ACCESS_KEY=[removed]"),
        ("access_key=abc, other", "access_key=[removed], other"),
        ("aws_access_key_id = abc", "aws_access_key_id = [removed]"),
        ("DefaultEndpointsProtocol=https;AccountKey=abc==", "DefaultEndpointsProtocol=https;AccountKey=[removed]"),
        ("WANDB_API_KEY=0123456789abcdef", "WANDB_API_KEY=[removed]"),
        ("WANDB_API_KEY: abc123xyz", "WANDB_API_KEY: [removed]"),
        ("{\"password\": \"hunter2\"}", "{\"password\": \"[removed]\"}"),
        ("password: \"correct horse battery\" x", "password: \"[removed]\" x"),
        (r#"{\"password\": \"hunter2\", \"a\": 1}"#, r#"{\"password\": \"[removed]\", \"a\": 1}"#),
        ("machine api.wandb.ai login user password abc", "machine api.wandb.ai login user password [removed]"),
        ("python train.py --hub-token abc --lr 1", "python train.py --hub-token [removed] --lr 1"),
        ("token=abc&x=1", "token=[removed]"),
        ("GET /x?sig=abc%3D&se=2026", "GET /x?sig=[removed]&se=2026"),
        ("NO_SUCH_HOOK_7=https://q/w", "NO_SUCH_HOOK_7=[removed]"),
        ("with NO_SUCH_HOOK_7 hunter2 set", "with NO_SUCH_HOOK_7 [removed] set"),
        ("HF_TOKEN hf-other-shape", "HF_TOKEN [removed]"),
        ("KEY_PASSPHRASE=correct horse battery staple", "KEY_PASSPHRASE=[removed]"),
        ("KEY_PASSPHRASE correct horse battery\nstep 1", "KEY_PASSPHRASE [removed]\nstep 1"),
        ("passphrase: correct horse, lr: 1", "passphrase: [removed], lr: 1"),
        ("{\"passphrase\": \"correct horse\", \"a\": 1}", "{\"passphrase\": \"[removed]\", \"a\": 1}"),
        ("MYSQL_PWD=hunter2 SSHPASS='hunter 2' x", "MYSQL_PWD=[removed] SSHPASS='[removed]' x"),
        ("DB_PWD: hunter2", "DB_PWD: [removed]"),
        ("export GITHUB_PAT=abc AUTH=me:pw", "export GITHUB_PAT=[removed] AUTH=[removed]"),
        (r#"{"MYSQL_PWD": "hunter2", "a": 1}"#, r#"{"MYSQL_PWD": "[removed]", "a": 1}"#),
        ("curl -s -u ada:hunter2 https://x/y", "curl -s -u ada:[removed] https://x/y"),
        ("curl --user 'ada:hunter2' https://x/y", "curl --user 'ada:[removed]' https://x/y"),
        ("Server=db;Uid=ada;Pwd=hunter2;Port=1", "Server=db;Uid=ada;Pwd=[removed];Port=1"),
        ("python train.py --auth=hunter2 --lr 1", "python train.py --auth=[removed] --lr 1"),
        ("python train.py --auth hunter2 -p s3cret-x --lr 1", "python train.py --auth [removed] -p [removed] --lr 1"),
        (
            "command:\n  - -p\n  - hunter2\n  - -u\n  - me:pw",
            "command:\n  - -p\n  - [removed]\n  - -u\n  - me:[removed]",
        ),
        (
            r#"["train.py", "--auth", "x7", "-p", "hunter2"]"#,
            r#"["train.py", "--auth", "[removed]", "-p", "[removed]"]"#,
        ),
        ("webhooks[0].token: hunter2 was used", "webhooks[0].token: [removed] was used"),
    ];
    for (text, expected) in cases {
        assert_eq!(redactor.clean(text), expected, "{text}");
    }
}

#[test]
fn tokens_go_by_their_shape() {
    let redactor = redactor();
    let long = "0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX2";
    let upper = "ABCDEFGH12345678";
    let (hex, half) = ("0123456789abcdef0123456789abcdef01234567", "0aB1cD2eF3gH4iJ5kL");
    // Split in two, so that no scanner takes them for leaked tokens.
    let tokens = [
        format!("gh{}{long}", "p_"),
        format!("gh{}{long}", "o_"),
        format!("github{}{long}", "_pat_"),
        format!("gl{}{long}", "pat-"),
        format!("h{}{long}", "f_"),
        format!("s{}{long}", "k-"),
        format!("s{}{long}", "k-proj-"),
        format!("s{}{long}", "k-ant-api03-"),
        format!("s{}{long}", "k_live_"),
        format!("xo{}123456-{long}", "xb-"),
        format!("xa{}1-{long}", "pp-"),
        format!("AK{}{upper}", "IA"),
        format!("AS{}{upper}", "IA"),
        format!("AI{}{long}", "za"),
        format!("ya{}{long}", "29."),
        format!("np{}{long}", "m_"),
        format!("py{}{long}", "pi-"),
        format!("nv{}{long}", "api-"),
        format!("wan{}{long}", "db_v1_"),
        format!("t{}{long}", "k_"),
        format!("ey{}{half}.{half}.{half}", "J"),
        format!("M{half}0aB1cD.Gabc12.{long}"),
        format!("bot123456789:{long}"),
        format!("123456789:{long}"),
        format!("https://hooks.slack{}/T000/B000/{half}", ".com/services"),
        format!("https://discord{}/api/v10/webhooks/12/{half}", ".com"),
    ];
    for token in &tokens {
        for text in [format!("using {token}\n"), format!("\"{token}\","), format!("({token})")] {
            let clean = redactor.clean(&text);
            assert!(clean.contains("[removed]") && !clean.contains(&token[token.len() - 9..]), "{text}: {clean}");
        }
    }
    for text in [format!("wandb login {hex}"), format!("wandb: Appending key for api.wandb.ai: {hex}")] {
        assert!(!redactor.clean(&text).contains(hex), "{text}");
    }
    for kind in ["RSA ", "OPENSSH ", "EC ", ""] {
        let (begin, end) = (format!("-----BEGIN {kind}PRIVATE KEY-----"), format!("-----END {kind}PRIVATE KEY-----"));
        assert_eq!(redactor.clean(&format!("a\n{begin}\nMIIB\n{end}\nb")), "a\n[removed]\nb");
        assert_eq!(redactor.clean(&format!("a\n{begin}\nMIIB\n")), "a\n[removed]", "cut off at the end");
        let cut = redactor.clean(&format!("{}\nAA==\n{end}\nb", "Qk0".repeat(20)));
        assert_eq!(cut, "[removed]\nb", "cut off at the beginning");
    }
}

#[test]
fn text_that_only_looks_secret_stays() {
    let redactor = redactor();
    let lines = [
        "token: env:NTFY",
        "- { kind: ntfy, url: 'file:~/.hook', token: 'env:NO_SUCH_HOOK_7' }",
        "token: env:NO_SUCH_HOOK_7\n    url: env:HOOK",
        "the environment variable NO_SUCH_HOOK_7 is not set",
        "n.yaml:2:27: webhooks[0].token: a secret does not belong in this file",
        "KEY_PASSPHRASE is not set, and no passphrase was given",
        "AWS_SECRET_ACCESS_KEY is not set",
        "tokens: 512, tokenizer: bytes, loss 2.31",
        "51.9 tokens/s, 1 024 tokens a batch, loss per token: 2.31",
        "eos_token: </s>, pad_token=[PAD], bos_token_id: 1",
        "next token: the",
        "SyntaxError: unexpected token: }",
        "MAX_TOKENS 512 --max-tokens 512 --pad-token <pad>",
        "TOKENIZERS_PARALLELISM=disabled",
        "model.safetensors blake3 af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "commit 0123456789abcdef0123456789abcdef01234567 of the repository",
        "wandb: git commit 0123456789abcdef0123456789abcdef01234567",
        "step 1200, samples 76800: loss 0.0508",
        "/usr/bin/python at step 1200",
        "password: null, \"secret\": \"\", api_key: env:K",
        "see https://pytorch.org/docs?page=2 and http://127.0.0.1:8080/metrics@v1",
        "git@github.com:me/x.git over ssh://git@github.com/me/x",
        "sk-learn 1.5, hf_hub 0.3, a key of the state: layers.0.attn.key.weight",
        "12:34:56 worker 12345 ended: killed by SIGKILL",
        "key=layers.0 value=3; primary key; KeyError: 'access'",
        "basic tokenizer, bearer of news",
        "PWD=/data/runs OLDPWD=/data pwd=~/x",
        "ssh -p 2222 host; docker run -p 8080:80 -p 127.0.0.1:1:2 image",
        "mkdir -p out; mkdir -p runs/model7b; cp -p weights1.bin there; train.py -p bf16 -p float32 --precision fp16",
        "pytest -p no:cacheprovider -p config2.yaml",
        "--no-auth train.py --auth-file x, author=me, PASS: test_7, 3 passes=2",
        "curl -u ada https://x/y and python -u train.py step:3",
    ];
    for line in lines {
        assert_eq!(redactor.clean(line), line);
    }
}

#[test]
fn notification_secrets_are_removed_from_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("token");
    fs::write(&kept, "kept-in-a-file\n").unwrap();
    let text = format!(
        "webhooks:\n  - {{ kind: json, url: 'https://x.example/hook/ABCSECRET' }}\n  - {{ kind: ntfy, url: 'https://ntfy.sh/abc', token: 'file:{}' }}\n",
        kept.display()
    );
    let log = "POST https://x.example/hook/ABCSECRET, hook/ABCSECRET, https://ntfy.sh/abc with kept-in-a-file";
    let expected = "POST https://x.example/[removed], [removed], https://ntfy.sh/[removed] with [removed]";
    let notify = Notify::read("n.yaml", &text).unwrap();
    assert_eq!(Redactor::new(Known::default(), &[notify], &[]).clean(log), expected);
    let broken = format!("{text}  nonsense: [\n");
    assert!(Notify::read("n.yaml", &broken).is_err());
    assert_eq!(Redactor::new(Known::default(), &[], &[broken]).clean(log), expected, "a file with a mistake in it");
}

#[test]
fn secrets_of_a_run_file_are_removed_wherever_they_stand() {
    let dir = tempfile::tempdir().unwrap();
    let text = "name: x\ntask: command\ncommand:\n  - python\n  - train.py\n  - --api-key\n  - abc123secretXYZ\n  - --password\n  - pw9\n  - --license-key=lk4\n  - DB_PASS=pwB2\n  - --eos-token\n  - <|endoftext|>\n  - --secret-flag\n  - --lr\n  - '0.001'\nenvironment:\n  LICENSE_KEY: one-two-three\n  SENTRY_DSN: https://k@sentry.example/77\n  MY_WEBHOOK: https://h.example/abcdef\n  DATA_DIR: /data/sets\n";
    fs::write(dir.path().join("run.yaml"), text).unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    assert!(run.run().is_ok(), "{:?}", run.run().err());
    let redactor = Redactor::of_run(&run);
    let secrets = ["abc123secretXYZ", "pw9", "lk4", "pwB2", "one-two-three", "sentry.example/77", "h.example/abcdef"];
    let clean = redactor.clean(text);
    for secret in secrets {
        assert!(!clean.contains(secret), "{secret}: {clean}");
    }
    for harmless in ["<|endoftext|>", "/data/sets", "0.001", "--lr", "train.py"] {
        assert!(clean.contains(harmless), "{harmless}: {clean}");
    }
    let log = "started with abc123secretXYZ and one-two-three, DB_PASS=pwB2";
    assert_eq!(redactor.clean(log), "started with [removed] and [removed], DB_PASS=[removed]");
    // A run file with an error in it has its secrets removed too.
    fs::write(dir.path().join("run.yaml"), format!("{text}nonsense: [\n")).unwrap();
    let clean = Redactor::of_run(&run).clean(text);
    for secret in ["abc123secretXYZ", "pw9", "pwB2", "one-two-three", "sentry.example/77"] {
        assert!(!clean.contains(secret), "{secret}: {clean}");
    }
}

#[test]
fn a_variable_is_a_secret_by_its_name_or_by_what_it_contains() {
    let redactor = redactor();
    let secrets = [
        ("HF_TOKEN", "x"),
        ("WANDB_API_KEY", "0123456789"),
        ("NO_SUCH_HOOK_7", "https://x/y"),
        ("DATABASE", "postgres://me:word@db/runs"),
        ("COPY", "a copy of abc123xyz"),
        ("OPTIONS", "--password x1y2z3"),
        ("CREDENTIAL", "hf_abcdefghijklmnop"),
    ];
    for (name, value) in secrets {
        assert!(redactor.is_secret(name, value), "{name}");
    }
    let others = [
        ("HF_TOKEN", ""),
        ("HF_TOKEN_PATH", "/home/ada/.cache/token"),
        ("HOME", "/home/ada"),
        ("HOSTNAME", "lab-box-7"),
        ("PATH", "/home/ada/venv/bin:/usr/bin"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("http_proxy", "http://proxy:3128"),
    ];
    for (name, value) in others {
        assert!(!redactor.is_secret(name, value), "{name}");
    }
}
