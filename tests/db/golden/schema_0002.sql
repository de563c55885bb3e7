BEGIN TRANSACTION;
CREATE TABLE "channel_history" (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	problem VARCHAR(256) NOT NULL, 
	environment_digest VARCHAR(64) NOT NULL, 
	checkpoint VARCHAR(32) NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	from_revision INTEGER, 
	to_revision INTEGER, 
	author TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	moved_at DATETIME NOT NULL, 
	CONSTRAINT fk_channel_history_from_revision_revisions FOREIGN KEY(from_revision) REFERENCES revisions (number), 
	CONSTRAINT fk_channel_history_to_revision_revisions FOREIGN KEY(to_revision) REFERENCES revisions (number)
);
INSERT INTO "channel_history" VALUES(1,'E=128,N=768,K=2048,topk=8,scheme=fp8_block128','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','stable',NULL,1,'golden','kept for later releases','2026-11-30 05:39:50.231101');
INSERT INTO "channel_history" VALUES(2,'E=128,N=768,K=2048,topk=8,scheme=fp8_block128','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','stable',1,2,'golden','kept for later releases','2026-11-30 05:39:50.243882');
INSERT INTO "channel_history" VALUES(3,'E=128,N=768,K=2048,topk=8,scheme=fp8_block128','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','stable',2,1,'golden','kept for later releases','2026-11-30 05:39:50.258934');
INSERT INTO "channel_history" VALUES(4,'E=8,N=14336,K=4096,topk=2,scheme=bf16','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','canary',NULL,3,'golden','kept for later releases','2026-11-30 05:39:50.265198');
INSERT INTO "channel_history" VALUES(5,'E=8,N=14336,K=4096,topk=2,scheme=bf16','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','beta',NULL,4,'golden','kept for later releases','2026-11-30 05:39:50.271060');
INSERT INTO "channel_history" VALUES(6,'E=8,N=14336,K=4096,topk=2,scheme=bf16','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','beta',4,NULL,'golden','kept for later releases','2026-11-30 05:39:50.276692');
CREATE TABLE channels (
	id INTEGER NOT NULL, 
	problem VARCHAR(256) NOT NULL, 
	environment_digest VARCHAR(64) NOT NULL, 
	checkpoint VARCHAR(32) NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	revision INTEGER NOT NULL, 
	CONSTRAINT pk_channels PRIMARY KEY (id), 
	CONSTRAINT fk_channels_revision_revisions FOREIGN KEY(revision) REFERENCES revisions (number), 
	CONSTRAINT uq_channels_problem_environment_digest_checkpoint_channel UNIQUE (problem, environment_digest, checkpoint, channel)
);
INSERT INTO "channels" VALUES(1,'E=128,N=768,K=2048,topk=8,scheme=fp8_block128','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','stable',1);
INSERT INTO "channels" VALUES(2,'E=8,N=14336,K=4096,topk=2,scheme=bf16','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','canary',3);
CREATE TABLE measurements (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	problem VARCHAR(256) NOT NULL, 
	gpu VARCHAR(128) NOT NULL, 
	environment JSON NOT NULL, 
	environment_digest VARCHAR(64) NOT NULL, 
	checkpoint VARCHAR(32) NOT NULL, 
	tokens BIGINT NOT NULL, 
	routing VARCHAR(64) NOT NULL, 
	backend VARCHAR(64) NOT NULL, 
	candidate_digest VARCHAR(64) NOT NULL, 
	stage VARCHAR(32) NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	run TEXT NOT NULL, 
	recorded_at DATETIME NOT NULL, 
	content JSON NOT NULL, 
	CONSTRAINT uq_measurements_digest UNIQUE (digest)
);
INSERT INTO "measurements" VALUES(1,'a9207c806c44edae425040938fb15492b43cc98fbf53eb6ebb2340f1e8e487f9','E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',8,'uniform','triton','434a51b0c87516e1ac3d47fd3257d613cab295a35888961c543b05976a8f3e5a','final','ok','run-1','2026-11-29 12:00:00.000000','{"problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "tokens": 8, "routing": "uniform", "candidate": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "stage": "final", "status": "ok", "reason": "", "times": {"candidate_us": [79.84, 79.92, 80.0, 80.08, 80.16], "baseline_us": [99.8, 99.9, 100.0, 100.1, 100.2], "p50_us": 80.0, "p95_us": 81.6, "baseline_p50_us": 100.0, "baseline_p95_us": 102.0}, "relative_error": 0.00123, "baseline_relative_error": null, "compile_s": null, "setup_s": null, "peak_bytes": null, "run": "run-1", "process": 0, "seed": 0, "driver": "580.159.04", "recorded_at": "2026-11-29T12:00:00Z"}');
INSERT INTO "measurements" VALUES(2,'ac79e94e8e62e9e5e57dd69c37dcfe02e8384f9dc1873945d4f24af706675846','E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',8,'uniform','triton','434a51b0c87516e1ac3d47fd3257d613cab295a35888961c543b05976a8f3e5a','final','ok','run-1','2026-11-29 12:00:01.000000','{"problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "tokens": 8, "routing": "uniform", "candidate": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "stage": "final", "status": "ok", "reason": "", "times": {"candidate_us": [79.84, 79.92, 80.0, 80.08, 80.16], "baseline_us": [99.8, 99.9, 100.0, 100.1, 100.2], "p50_us": 80.0, "p95_us": 81.6, "baseline_p50_us": 100.0, "baseline_p95_us": 102.0}, "relative_error": 0.00123, "baseline_relative_error": null, "compile_s": null, "setup_s": null, "peak_bytes": null, "run": "run-1", "process": 1, "seed": 0, "driver": "580.159.04", "recorded_at": "2026-11-29T12:00:01Z"}');
INSERT INTO "measurements" VALUES(3,'ca9f3c09152f74b48d181deef7fa239e13c018898b3a8bce5f90a4634aedccdb','E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',8,'uniform','triton','434a51b0c87516e1ac3d47fd3257d613cab295a35888961c543b05976a8f3e5a','final','ok','run-1','2026-11-29 12:00:02.000000','{"problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "tokens": 8, "routing": "uniform", "candidate": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "stage": "final", "status": "ok", "reason": "", "times": {"candidate_us": [79.84, 79.92, 80.0, 80.08, 80.16], "baseline_us": [99.8, 99.9, 100.0, 100.1, 100.2], "p50_us": 80.0, "p95_us": 81.6, "baseline_p50_us": 100.0, "baseline_p95_us": 102.0}, "relative_error": 0.00123, "baseline_relative_error": null, "compile_s": null, "setup_s": null, "peak_bytes": null, "run": "run-1", "process": 2, "seed": 0, "driver": "580.159.04", "recorded_at": "2026-11-29T12:00:02Z"}');
INSERT INTO "measurements" VALUES(4,'8ced951c697d9255e5662ccbe741454c51473dba063d24e2228f5c941f602d41','E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',1,'uniform','triton','434a51b0c87516e1ac3d47fd3257d613cab295a35888961c543b05976a8f3e5a','screen','ok','run-2','2026-11-29 12:00:09.000000','{"problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "tokens": 1, "routing": "uniform", "candidate": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "stage": "screen", "status": "ok", "reason": "", "times": {"candidate_us": [79.84, 79.92, 80.0, 80.08, 80.16], "baseline_us": [99.8, 99.9, 100.0, 100.1, 100.2], "p50_us": 80.0, "p95_us": 81.6, "baseline_p50_us": 100.0, "baseline_p95_us": 102.0}, "relative_error": null, "baseline_relative_error": null, "compile_s": null, "setup_s": null, "peak_bytes": null, "run": "run-2", "process": 0, "seed": 0, "driver": "580.159.04", "recorded_at": "2026-11-29T12:00:09Z"}');
INSERT INTO "measurements" VALUES(5,'9e3d92b79e9f83db07260ff72d3b4db6355dc76797fdf2d8187e918c3198ee77','E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',1,'uniform','triton','434a51b0c87516e1ac3d47fd3257d613cab295a35888961c543b05976a8f3e5a','final','out_of_resources','run-2','2026-11-29 12:00:10.000000','{"problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "tokens": 1, "routing": "uniform", "candidate": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "stage": "final", "status": "out_of_resources", "reason": "made out_of_resources by a test", "times": null, "relative_error": null, "baseline_relative_error": null, "compile_s": null, "setup_s": null, "peak_bytes": null, "run": "run-2", "process": 0, "seed": 0, "driver": "580.159.04", "recorded_at": "2026-11-29T12:00:10Z"}');
CREATE TABLE moe_autotune_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT moe_autotune_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "moe_autotune_version" VALUES('0002');
CREATE TABLE revisions (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	problem VARCHAR(256) NOT NULL, 
	gpu VARCHAR(128) NOT NULL, 
	environment JSON NOT NULL, 
	environment_digest VARCHAR(64) NOT NULL, 
	checkpoint VARCHAR(32) NOT NULL, 
	table_digest VARCHAR(64), 
	author TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT fk_revisions_table_digest_routing_tables FOREIGN KEY(table_digest) REFERENCES routing_tables (digest)
);
INSERT INTO "revisions" VALUES(1,'E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','cf4d19303188db676b1cf18971850039778dd1d3ab52b3f85228bdfa9851defe','golden','kept for later releases','2026-11-30 05:39:50.220614');
INSERT INTO "revisions" VALUES(2,'E=128,N=768,K=2048,topk=8,scheme=fp8_block128','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8','32162e89636febce0396799b7343de02e8cee22a9b5963e82b4a097f6a4b8291','golden','kept for later releases','2026-11-30 05:39:50.240669');
INSERT INTO "revisions" VALUES(3,'E=8,N=14336,K=4096,topk=2,scheme=bf16','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',NULL,'golden','kept for later releases','2026-11-30 05:39:50.262365');
INSERT INTO "revisions" VALUES(4,'E=8,N=14336,K=4096,topk=2,scheme=bf16','NVIDIA_H200','{"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}','3c68b95a38f898206f2a6f6beae0797e994cf3589711cb8c367617c4b396a94d','fp8',NULL,'golden','kept for later releases','2026-11-30 05:39:50.268606');
CREATE TABLE routing_tables (
	digest VARCHAR(64) NOT NULL, 
	content JSON NOT NULL, 
	CONSTRAINT pk_routing_tables PRIMARY KEY (digest)
);
INSERT INTO "routing_tables" VALUES('cf4d19303188db676b1cf18971850039778dd1d3ab52b3f85228bdfa9851defe','{"schema_version": 1, "problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "margin": 0.01, "routing": "uniform", "recording": {"first": "2026-11-29T12:00:00Z", "last": "2026-11-29T12:05:00Z", "driver": "580.159.04", "runs": ["run-1"], "measurements": 6}, "routes": [{"first": 1, "last": 1, "tokens": 1, "verdict": "no_benefit", "winner": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "speedup": null, "winner_timing": {"p50_us": 21.5, "p95_us": 21.93}, "baseline_timing": {"p50_us": 21.5, "p95_us": 21.93}, "evidence": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"], "alternatives": [{"candidate": {"backend": "deep_gemm"}, "first": 1, "timing": {"p50_us": 32.25, "p95_us": 34.4}, "speedup": {"median": 0.667, "low": 0.66}, "final": false, "evidence": ["dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"]}]}, {"first": 2, "last": 8, "tokens": 8, "verdict": "win", "winner": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": true}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "speedup": {"median": 1.25, "low": 1.225}, "winner_timing": {"p50_us": 25.6, "p95_us": 26.112}, "baseline_timing": {"p50_us": 32.0, "p95_us": 32.64}, "evidence": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"], "alternatives": [{"candidate": {"backend": "deep_gemm"}, "first": 2, "timing": {"p50_us": 48.0, "p95_us": 51.2}, "speedup": {"median": 0.667, "low": 0.66}, "final": false, "evidence": ["dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"]}]}]}');
INSERT INTO "routing_tables" VALUES('32162e89636febce0396799b7343de02e8cee22a9b5963e82b4a097f6a4b8291','{"schema_version": 1, "problem": {"E": 128, "N": 768, "K": 2048, "topk": 8, "scheme": "fp8_block128", "act": "silu", "ep": 1}, "environment": {"gpu": "NVIDIA_H200", "capability": "9.0", "vllm": "0.25.1", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "flashinfer": null}, "checkpoint": "fp8", "margin": 0.01, "routing": "uniform", "recording": {"first": "2026-11-29T12:00:00Z", "last": "2026-11-29T12:05:00Z", "driver": "580.159.04", "runs": ["run-1"], "measurements": 9}, "routes": [{"first": 1, "last": 1, "tokens": 1, "verdict": "win", "winner": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": true}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "speedup": {"median": 1.25, "low": 1.225}, "winner_timing": {"p50_us": 17.2, "p95_us": 17.544}, "baseline_timing": {"p50_us": 21.5, "p95_us": 21.93}, "evidence": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"], "alternatives": [{"candidate": {"backend": "deep_gemm"}, "first": 1, "timing": {"p50_us": 32.25, "p95_us": 34.4}, "speedup": {"median": 0.667, "low": 0.66}, "final": false, "evidence": ["dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"]}]}, {"first": 2, "last": 8, "tokens": 8, "verdict": "win", "winner": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": true}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "speedup": {"median": 1.25, "low": 1.225}, "winner_timing": {"p50_us": 25.6, "p95_us": 26.112}, "baseline_timing": {"p50_us": 32.0, "p95_us": 32.64}, "evidence": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"], "alternatives": [{"candidate": {"backend": "deep_gemm"}, "first": 2, "timing": {"p50_us": 48.0, "p95_us": 51.2}, "speedup": {"median": 0.667, "low": 0.66}, "final": false, "evidence": ["dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"]}]}, {"first": 9, "last": 64, "tokens": 64, "verdict": "win", "winner": {"backend": "triton", "tile": {"block_m": 16, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": true}, "baseline": {"backend": "triton", "tile": {"block_m": 64, "block_n": 128, "block_k": 128, "group_m": 1, "num_warps": 4, "num_stages": 3}, "swap_ab": false}, "speedup": {"median": 1.25, "low": 1.225}, "winner_timing": {"p50_us": 92.8, "p95_us": 94.656}, "baseline_timing": {"p50_us": 116.0, "p95_us": 118.32}, "evidence": ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"], "alternatives": [{"candidate": {"backend": "deep_gemm"}, "first": 9, "timing": {"p50_us": 174.0, "p95_us": 185.6}, "speedup": {"median": 0.667, "low": 0.66}, "final": false, "evidence": ["dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"]}]}]}');
CREATE TABLE telemetry (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	received_at DATETIME NOT NULL, 
	instance TEXT NOT NULL, 
	gpu VARCHAR(128) NOT NULL, 
	problem VARCHAR(256) NOT NULL, 
	revision BIGINT, 
	tokens BIGINT NOT NULL, 
	answer VARCHAR(32) NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	count BIGINT NOT NULL
);
INSERT INTO "telemetry" VALUES(1,'2026-11-30 05:39:50.279468','node-1','NVIDIA_H200','E=128,N=768,K=2048,topk=8,scheme=fp8_block128',1,8,'route','',12);
CREATE INDEX ix_measurements_problem_environment_digest_checkpoint ON measurements (problem, environment_digest, checkpoint);
CREATE INDEX ix_measurements_problem_recorded_at ON measurements (problem, recorded_at);
CREATE INDEX ix_measurements_run ON measurements (run);
CREATE INDEX ix_revisions_problem_environment_digest_checkpoint ON revisions (problem, environment_digest, checkpoint);
CREATE INDEX ix_revisions_gpu ON revisions (gpu);
CREATE INDEX ix_channels_revision ON channels (revision);
CREATE INDEX ix_telemetry_received_at ON telemetry (received_at);
CREATE INDEX ix_telemetry_problem ON telemetry (problem);
CREATE TRIGGER measurements_immutable BEFORE UPDATE ON measurements BEGIN SELECT RAISE(ABORT, 'measurements are immutable'); END;
CREATE TRIGGER routing_tables_immutable BEFORE UPDATE ON routing_tables BEGIN SELECT RAISE(ABORT, 'routing_tables are immutable'); END;
CREATE TRIGGER revisions_immutable BEFORE UPDATE ON revisions BEGIN SELECT RAISE(ABORT, 'revisions are immutable'); END;
CREATE INDEX ix_channel_history_key ON channel_history (problem, environment_digest, checkpoint, channel);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('channel_history',6);
INSERT INTO "sqlite_sequence" VALUES('measurements',5);
INSERT INTO "sqlite_sequence" VALUES('revisions',4);
INSERT INTO "sqlite_sequence" VALUES('telemetry',1);
COMMIT;
