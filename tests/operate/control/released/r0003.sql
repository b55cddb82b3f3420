BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE artifacts (
	attempt VARCHAR(96) NOT NULL, 
	name VARCHAR(1024) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	size_bytes INTEGER NOT NULL, 
	at_ms INTEGER NOT NULL, 
	CONSTRAINT pk_artifacts PRIMARY KEY (attempt, name), 
	CONSTRAINT fk_artifacts_attempt FOREIGN KEY(attempt) REFERENCES attempts (id)
);
INSERT INTO "artifacts" VALUES('tiny-1.1','plots/ü.png','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb',11,1700000020000);
CREATE TABLE attempts (
	id VARCHAR(96) NOT NULL, 
	job VARCHAR(80) NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT fk_attempts_job FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "attempts" VALUES('tiny-1.1','tiny-1','{"id":"tiny-1.1","job":"tiny-1","number":1,"placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29503,"epoch":1,"placed_ms":1700000000000,"running_ms":1700000000000,"ended_ms":1700000020000,"ok":true,"detail":"every rank exited with code 0","ranks":[{"rank":0,"pid":1000},{"rank":1,"pid":1001}],"exits":[{"rank":0,"code":0,"at_ms":1700000020000,"first":true,"said":""},{"rank":1,"code":0,"at_ms":1700000020000,"first":true,"said":""}],"resumed":null,"recoveries":[],"checkpoints":[{"rank":0,"step":3,"path":"/c","digest":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd","size_bytes":7,"at_ms":1700000000000,"kind":"checkpoint"}],"facts":2,"lost":{},"evicted_for":null,"evicted_why":"","findings":[],"faults":[],"traces":[],"gang_port":0,"released":[]}');
INSERT INTO "attempts" VALUES('fails-2.1','fails-2','{"id":"fails-2.1","job":"fails-2","number":1,"placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29510,"epoch":1,"placed_ms":1700000020000,"running_ms":1700000020000,"ended_ms":1700000020000,"ok":false,"detail":"rank 0 exited with code 1","ranks":[{"rank":0,"pid":1000},{"rank":1,"pid":1001}],"exits":[{"rank":0,"code":1,"at_ms":1700000020000,"first":true,"said":""},{"rank":1,"code":1,"at_ms":1700000020000,"first":true,"said":""}],"resumed":null,"recoveries":[],"checkpoints":[],"facts":0,"lost":{},"evicted_for":null,"evicted_why":"","findings":[],"faults":[],"traces":[],"gang_port":0,"released":[]}');
INSERT INTO "attempts" VALUES('runs-3.1','runs-3','{"id":"runs-3.1","job":"runs-3","number":1,"placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29514,"epoch":1,"placed_ms":1700000020000,"running_ms":1700000020000,"ended_ms":null,"ok":null,"detail":"","ranks":[{"rank":0,"pid":1000},{"rank":1,"pid":1001}],"exits":[],"resumed":null,"recoveries":[],"checkpoints":[],"facts":0,"lost":{},"evicted_for":null,"evicted_why":"","findings":[],"faults":[],"traces":[],"gang_port":0,"released":[]}');
INSERT INTO "attempts" VALUES('waits-5.1','waits-5','{"id":"waits-5.1","job":"waits-5","number":1,"placement":{"slices":[{"node":"b","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29520,"epoch":1,"placed_ms":1700000020000,"running_ms":null,"ended_ms":null,"ok":null,"detail":"","ranks":[],"exits":[],"resumed":null,"recoveries":[],"checkpoints":[],"facts":0,"lost":{},"evicted_for":null,"evicted_why":"","findings":[],"faults":[],"traces":[],"gang_port":0,"released":[]}');
CREATE TABLE events (
	seq INTEGER NOT NULL, 
	at_ms INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	job VARCHAR(80), 
	body TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (seq)
);
INSERT INTO "events" VALUES(1,1700000000000,'job_submitted','tiny-1','{"job":"tiny-1","spec":{"name":"tiny","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"cf2c2aef6fe9b42494b968594dfa8d80afdda972d706c81a71fa3979e024ee8e","by":"ada","array":"","array_index":0,"kind":"job_submitted"}');
INSERT INTO "events" VALUES(2,1700000000000,'node_up',NULL,'{"shape":{"node":"a","address":"a.test","devices":[{"index":0,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""},{"index":1,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""}],"cpus":8.0,"memory_bytes":17179869184,"ports":[29500,29600],"features":[]},"boot":"boot-1","kind":"node_up"}');
INSERT INTO "events" VALUES(3,1700000000000,'node_up',NULL,'{"shape":{"node":"b","address":"b.test","devices":[{"index":0,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""},{"index":1,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""}],"cpus":8.0,"memory_bytes":17179869184,"ports":[29500,29600],"features":[]},"boot":"boot-1","kind":"node_up"}');
INSERT INTO "events" VALUES(4,1700000000000,'attempt_placed','tiny-1','{"job":"tiny-1","attempt":"tiny-1.1","placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29503,"epoch":1,"gang_port":0,"kind":"attempt_placed"}');
INSERT INTO "events" VALUES(5,1700000000000,'attempt_running','tiny-1','{"job":"tiny-1","attempt":"tiny-1.1","ranks":[{"rank":0,"pid":1000},{"rank":1,"pid":1001}],"kind":"attempt_running"}');
INSERT INTO "events" VALUES(6,1700000000000,'rank_said','tiny-1','{"job":"tiny-1","attempt":"tiny-1.1","fact":{"rank":0,"step":3,"path":"/c","digest":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd","size_bytes":7,"at_ms":1700000000000,"kind":"checkpoint"},"kind":"rank_said"}');
INSERT INTO "events" VALUES(7,1700000000000,'rank_said','tiny-1','{"job":"tiny-1","attempt":"tiny-1.1","fact":{"rank":0,"step":3,"path":"/m","weights_digest":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee","metrics":{"loss":1.5},"lineage":{"recipe":"é"},"at_ms":1700000000000,"kind":"model"},"kind":"rank_said"}');
INSERT INTO "events" VALUES(8,1700000000000,'model_registered','tiny-1','{"name":"tiny","version":1,"job":"tiny-1","attempt":"tiny-1.1","saved":{"rank":0,"step":3,"path":"/m","weights_digest":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee","metrics":{"loss":1.5},"lineage":{"recipe":"é"},"at_ms":1700000000000,"kind":"model"},"lineage":{"recipe":"é","job":"tiny-1","attempt":"tiny-1.1","attempts":"1","code":"","config":"cf2c2aef6fe9b42494b968594dfa8d80afdda972d706c81a71fa3979e024ee8e"},"kind":"model_registered"}');
INSERT INTO "events" VALUES(9,1700000020000,'attempt_ended','tiny-1','{"job":"tiny-1","attempt":"tiny-1.1","ok":true,"again":false,"detail":"every rank exited with code 0","exits":[{"rank":0,"code":0,"at_ms":1700000020000,"first":true,"said":""},{"rank":1,"code":0,"at_ms":1700000020000,"first":true,"said":""}],"not_before_ms":0,"interrupted":false,"ended_ms":0,"fruitless":false,"kind":"attempt_ended"}');
INSERT INTO "events" VALUES(10,1700000020000,'job_submitted','fails-2','{"job":"fails-2","spec":{"name":"fails","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":0,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"8fe909d63e342bd2a788903f4da3c9ddad16bceb403e9bbb49e66f1141a481c4","by":"ada","array":"","array_index":0,"kind":"job_submitted"}');
INSERT INTO "events" VALUES(11,1700000020000,'attempt_placed','fails-2','{"job":"fails-2","attempt":"fails-2.1","placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29510,"epoch":1,"gang_port":0,"kind":"attempt_placed"}');
INSERT INTO "events" VALUES(12,1700000020000,'attempt_running','fails-2','{"job":"fails-2","attempt":"fails-2.1","ranks":[{"rank":0,"pid":1000},{"rank":1,"pid":1001}],"kind":"attempt_running"}');
INSERT INTO "events" VALUES(13,1700000020000,'attempt_ended','fails-2','{"job":"fails-2","attempt":"fails-2.1","ok":false,"again":false,"detail":"rank 0 exited with code 1","exits":[{"rank":0,"code":1,"at_ms":1700000020000,"first":true,"said":""},{"rank":1,"code":1,"at_ms":1700000020000,"first":true,"said":""}],"not_before_ms":0,"interrupted":false,"ended_ms":0,"fruitless":false,"kind":"attempt_ended"}');
INSERT INTO "events" VALUES(14,1700000020000,'job_submitted','runs-3','{"job":"runs-3","spec":{"name":"runs","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"fd8d4cf6513dfc1c576157a2f0316de546c0a0cb2830dd5edef7449f102730a1","by":"ada","array":"","array_index":0,"kind":"job_submitted"}');
INSERT INTO "events" VALUES(15,1700000020000,'attempt_placed','runs-3','{"job":"runs-3","attempt":"runs-3.1","placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29514,"epoch":1,"gang_port":0,"kind":"attempt_placed"}');
INSERT INTO "events" VALUES(16,1700000020000,'attempt_running','runs-3','{"job":"runs-3","attempt":"runs-3.1","ranks":[{"rank":0,"pid":1000},{"rank":1,"pid":1001}],"kind":"attempt_running"}');
INSERT INTO "events" VALUES(17,1700000020000,'job_submitted','cancelled-4','{"job":"cancelled-4","spec":{"name":"cancelled","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"419cdd478216ed2e83575803843914b2f7465d36d854093dae3d0b7dc4f6c392","by":"ada","array":"","array_index":0,"kind":"job_submitted"}');
INSERT INTO "events" VALUES(18,1700000020000,'stop_requested','cancelled-4','{"job":"cancelled-4","cause":"cancel","by":"ada","kind":"stop_requested"}');
INSERT INTO "events" VALUES(19,1700000020000,'job_submitted','waits-5','{"job":"waits-5","spec":{"name":"waits","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"d38a1318be974bb572608ba3778b96e75091b7807f87894fc2ea9fbae67164ef","by":"ada","array":"","array_index":0,"kind":"job_submitted"}');
INSERT INTO "events" VALUES(20,1700000020000,'job_submitted','waits-too-6','{"job":"waits-too-6","spec":{"name":"waits-too","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":2,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"0c5b1ae9f3fa8fe3e563d65bb06b9bd92e3e85f606ead61628ee274fe58fd439","by":"ada","array":"","array_index":0,"kind":"job_submitted"}');
INSERT INTO "events" VALUES(21,1700000020000,'attempt_placed','waits-5','{"job":"waits-5","attempt":"waits-5.1","placement":{"slices":[{"node":"b","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"master_port":29520,"epoch":1,"gang_port":0,"kind":"attempt_placed"}');
INSERT INTO "events" VALUES(22,1700000020000,'job_waits','waits-too-6','{"job":"waits-too-6","reason":{"asked":4,"free":0,"held":4,"fenced":0,"closed":0,"milli":0,"kind":"no_room"},"kind":"job_waits"}');
INSERT INTO "events" VALUES(23,1700000020000,'node_drained',NULL,'{"node":"b","reason":"disk","by":"ada","kind":"node_drained"}');
INSERT INTO "events" VALUES(24,1700000020000,'policy_set',NULL,'{"policy":{"order":"fair","half_life":"7d","backfill":true,"heads":1,"classes":{"low":{"priority":0,"wait_target":""},"standard":{"priority":50,"wait_target":"30m"},"high":{"priority":75,"wait_target":"5m"}},"queues":{"research":{"parent":"","weight":2.0,"quota":{},"limit":{},"borrow":true,"lend":true,"budget":null,"cells":null}},"preemption":{"enabled":true,"reclaim":true,"max_victims":64,"min_runtime":"2m","max_evictions":8},"bookings":{},"windows":{},"spares":{},"spot_fallback":"10m","packing":"tight","nodes":[],"region":"","health":{"stragglers":"tell","corruption":"tell"},"checkpoint_store":""},"by":"ada","kind":"policy_set"}');
CREATE TABLE jobs (
	id VARCHAR(80) NOT NULL, 
	sequence INTEGER NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_sequence UNIQUE (sequence)
);
INSERT INTO "jobs" VALUES('tiny-1',1,'finished','{"id":"tiny-1","sequence":1,"spec":{"name":"tiny","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"cf2c2aef6fe9b42494b968594dfa8d80afdda972d706c81a71fa3979e024ee8e","by":"ada","submitted_ms":1700000000000,"state":{"attempt":1,"outcome":"succeeded","detail":"every rank exited with code 0","name":"finished"},"reason":null,"stop":null,"attempts":["tiny-1.1"],"quick_ends":0,"interruptions":0,"started_ms":1700000000000,"finished_ms":1700000020000,"model":"tiny:1","collected_ms":null,"claim":null,"since_ms":1700000020000,"repair":false,"evicted_ms":[],"served_ms":40000,"array":"","array_index":0,"saved_step":3,"fruitless":0}');
INSERT INTO "jobs" VALUES('fails-2',2,'finished','{"id":"fails-2","sequence":2,"spec":{"name":"fails","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":0,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"8fe909d63e342bd2a788903f4da3c9ddad16bceb403e9bbb49e66f1141a481c4","by":"ada","submitted_ms":1700000020000,"state":{"attempt":1,"outcome":"failed","detail":"rank 0 exited with code 1","name":"finished"},"reason":null,"stop":null,"attempts":["fails-2.1"],"quick_ends":0,"interruptions":0,"started_ms":1700000020000,"finished_ms":1700000020000,"model":null,"collected_ms":null,"claim":null,"since_ms":1700000020000,"repair":false,"evicted_ms":[],"served_ms":0,"array":"","array_index":0,"saved_step":-1,"fruitless":0}');
INSERT INTO "jobs" VALUES('runs-3',3,'running','{"id":"runs-3","sequence":3,"spec":{"name":"runs","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"fd8d4cf6513dfc1c576157a2f0316de546c0a0cb2830dd5edef7449f102730a1","by":"ada","submitted_ms":1700000020000,"state":{"attempt":1,"placement":{"slices":[{"node":"a","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"name":"running"},"reason":null,"stop":null,"attempts":["runs-3.1"],"quick_ends":0,"interruptions":0,"started_ms":1700000020000,"finished_ms":null,"model":null,"collected_ms":null,"claim":null,"since_ms":1700000020000,"repair":false,"evicted_ms":[],"served_ms":0,"array":"","array_index":0,"saved_step":-1,"fruitless":0}');
INSERT INTO "jobs" VALUES('cancelled-4',4,'finished','{"id":"cancelled-4","sequence":4,"spec":{"name":"cancelled","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"419cdd478216ed2e83575803843914b2f7465d36d854093dae3d0b7dc4f6c392","by":"ada","submitted_ms":1700000020000,"state":{"attempt":0,"outcome":"cancelled","detail":"cancelled while waiting","name":"finished"},"reason":null,"stop":"cancel","attempts":[],"quick_ends":0,"interruptions":0,"started_ms":null,"finished_ms":1700000020000,"model":null,"collected_ms":null,"claim":null,"since_ms":1700000020000,"repair":false,"evicted_ms":[],"served_ms":0,"array":"","array_index":0,"saved_step":-1,"fruitless":0}');
INSERT INTO "jobs" VALUES('waits-5',5,'starting','{"id":"waits-5","sequence":5,"spec":{"name":"waits","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":1,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"d38a1318be974bb572608ba3778b96e75091b7807f87894fc2ea9fbae67164ef","by":"ada","submitted_ms":1700000020000,"state":{"attempt":1,"placement":{"slices":[{"node":"b","devices":[0,1],"milli":1000,"memory_bytes":0}],"borrowed":false},"name":"starting"},"reason":null,"stop":null,"attempts":["waits-5.1"],"quick_ends":0,"interruptions":0,"started_ms":1700000020000,"finished_ms":null,"model":null,"collected_ms":null,"claim":null,"since_ms":1700000020000,"repair":false,"evicted_ms":[],"served_ms":0,"array":"","array_index":0,"saved_step":-1,"fruitless":0}');
INSERT INTO "jobs" VALUES('waits-too-6',6,'pending','{"id":"waits-too-6","sequence":6,"spec":{"name":"waits-too","project":"default","kind":"batch","entrypoint":"python train.py --fast","recipe":"","workdir":"","environment":{"python":"","lock":"","image":""},"env":{"SEED":"1"},"secrets":[],"num_nodes":2,"min_nodes":0,"resources":{"gpus":"2","cpus":0.0,"memory":"0","gpu_memory":"0"},"placing":{"within":"","group":0,"group_within":"domain","where":{},"spot":"never","regions":[],"data":{}},"queue":"default","priority":50,"preemptible":true,"deadline":"","window":"","after":[],"array":null,"max_restarts":1,"max_duration":"","on_partition":"keep","notify":null,"checkpoint":{"every":100,"keep_last":2,"keep_best":0,"best_metric":"","best_mode":"min","keep_every":0,"store":""},"recovery":{"in_gang":false,"spares":1,"hang_timeout":"","min_ranks":0,"replicas":0},"layout":{"pp":1,"cp":1,"tp":1,"ep":1,"zero":3,"replicate":1,"context":"ring","schedule":"1f1b","stages_per_rank":0},"profile":null,"chaos":false,"hyperparameters":{"lr":0.5,"steps":3,"name":"x","flag":true},"data":null},"code":"","config":"0c5b1ae9f3fa8fe3e563d65bb06b9bd92e3e85f606ead61628ee274fe58fd439","by":"ada","submitted_ms":1700000020000,"state":{"attempt":0,"not_before_ms":0,"name":"pending"},"reason":{"asked":4,"free":0,"held":4,"fenced":0,"closed":0,"milli":0,"kind":"no_room"},"stop":null,"attempts":[],"quick_ends":0,"interruptions":0,"started_ms":null,"finished_ms":null,"model":null,"collected_ms":null,"claim":null,"since_ms":1700000020000,"repair":false,"evicted_ms":[],"served_ms":0,"array":"","array_index":0,"saved_step":-1,"fruitless":0}');
CREATE TABLE join_tokens (
	sha256 VARCHAR(64) NOT NULL, 
	created_ms INTEGER NOT NULL, 
	expires_ms INTEGER NOT NULL, 
	used_by VARCHAR(255), 
	CONSTRAINT pk_join_tokens PRIMARY KEY (sha256)
);
INSERT INTO "join_tokens" VALUES('8679ca0928eb603da09c1ab10971f676806bf725dca07fa652153abde82ed821',1700000020000,1700000080000,'a');
INSERT INTO "join_tokens" VALUES('2a0088bf0335922a752485d84e1729478d70c1f2257e4aaf07b2a88f23abbd23',1700000020000,1700000080000,NULL);
CREATE TABLE meta (
	"key" VARCHAR(32) NOT NULL, 
	value INTEGER NOT NULL, 
	CONSTRAINT pk_meta PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('epoch',3);
INSERT INTO "meta" VALUES('sequence',6);
CREATE TABLE models (
	name VARCHAR(64) NOT NULL, 
	version INTEGER NOT NULL, 
	attempt VARCHAR(96) NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_models PRIMARY KEY (name, version), 
	CONSTRAINT fk_models_attempt FOREIGN KEY(attempt) REFERENCES attempts (id), 
	CONSTRAINT uq_models_attempt UNIQUE (attempt)
);
INSERT INTO "models" VALUES('tiny',1,'tiny-1.1','{"name":"tiny","version":1,"job":"tiny-1","attempt":"tiny-1.1","saved":{"rank":0,"step":3,"path":"/m","weights_digest":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee","metrics":{"loss":1.5},"lineage":{"recipe":"é"},"at_ms":1700000000000,"kind":"model"},"lineage":{"recipe":"é","job":"tiny-1","attempt":"tiny-1.1","attempts":"1","code":"","config":"cf2c2aef6fe9b42494b968594dfa8d80afdda972d706c81a71fa3979e024ee8e"},"created_ms":1700000000000}');
CREATE TABLE node_credentials (
	sha256 VARCHAR(64) NOT NULL, 
	node VARCHAR(255) NOT NULL, 
	created_ms INTEGER NOT NULL, 
	CONSTRAINT pk_node_credentials PRIMARY KEY (sha256), 
	CONSTRAINT uq_node_credentials_node UNIQUE (node)
);
INSERT INTO "node_credentials" VALUES('ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','a',1700000020000);
CREATE TABLE nodes (
	id VARCHAR(255) NOT NULL, 
	up BOOLEAN NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_nodes PRIMARY KEY (id)
);
INSERT INTO "nodes" VALUES('a',1,'{"shape":{"node":"a","address":"a.test","devices":[{"index":0,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""},{"index":1,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""}],"cpus":8.0,"memory_bytes":17179869184,"ports":[29500,29600],"features":[]},"boot":"boot-1","up":true,"since_ms":1700000000000,"drained":""}');
INSERT INTO "nodes" VALUES('b',1,'{"shape":{"node":"b","address":"b.test","devices":[{"index":0,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""},{"index":1,"type":"cpu","name":"cpu","memory_bytes":0,"uuid":""}],"cpus":8.0,"memory_bytes":17179869184,"ports":[29500,29600],"features":[]},"boot":"boot-1","up":true,"since_ms":1700000000000,"drained":"disk"}');
CREATE TABLE notices (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	webhook TEXT NOT NULL, 
	entry TEXT NOT NULL, 
	tries INTEGER NOT NULL, 
	due_ms INTEGER NOT NULL
);
INSERT INTO "notices" VALUES(1,'https://hook.example','{}',2,5);
CREATE TABLE outbox (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	entry TEXT NOT NULL
);
INSERT INTO "outbox" VALUES(1,'{"job": "tiny-1", "attempt": "tiny-1.1", "project": "default", "name": "tiny", "params": {"num_nodes": "1", "gpus": "2", "lr": "0.5", "steps": "3", "name": "x", "flag": "True"}, "tags": {"phalanx.job": "tiny-1", "phalanx.attempt": "tiny-1.1", "phalanx.kind": "batch", "phalanx.queue": "default", "phalanx.code": "", "phalanx.config": "cf2c2aef6fe9b42494b968594dfa8d80afdda972d706c81a71fa3979e024ee8e", "phalanx.by": "ada"}, "at_ms": 1700000000000, "kind": "run_started"}');
INSERT INTO "outbox" VALUES(2,'{"name": "tiny", "version": 1, "job": "tiny-1", "attempt": "tiny-1.1", "path": "/m", "weights_digest": "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "lineage": {"recipe": "\u00e9", "job": "tiny-1", "attempt": "tiny-1.1", "attempts": "1", "code": "", "config": "cf2c2aef6fe9b42494b968594dfa8d80afdda972d706c81a71fa3979e024ee8e"}, "metrics": {"loss": 1.5}, "at_ms": 1700000000000, "kind": "model_version"}');
INSERT INTO "outbox" VALUES(3,'{"job": "tiny-1", "status": "FINISHED", "attempts": ["tiny-1.1"], "detail": "every rank exited with code 0", "at_ms": 1700000020000, "kind": "run_finished"}');
INSERT INTO "outbox" VALUES(4,'{"job": "fails-2", "attempt": "fails-2.1", "project": "default", "name": "fails", "params": {"num_nodes": "1", "gpus": "2", "lr": "0.5", "steps": "3", "name": "x", "flag": "True"}, "tags": {"phalanx.job": "fails-2", "phalanx.attempt": "fails-2.1", "phalanx.kind": "batch", "phalanx.queue": "default", "phalanx.code": "", "phalanx.config": "8fe909d63e342bd2a788903f4da3c9ddad16bceb403e9bbb49e66f1141a481c4", "phalanx.by": "ada"}, "at_ms": 1700000020000, "kind": "run_started"}');
INSERT INTO "outbox" VALUES(5,'{"job": "fails-2", "status": "FAILED", "attempts": ["fails-2.1"], "detail": "rank 0 exited with code 1", "at_ms": 1700000020000, "kind": "run_finished"}');
INSERT INTO "outbox" VALUES(6,'{"job": "runs-3", "attempt": "runs-3.1", "project": "default", "name": "runs", "params": {"num_nodes": "1", "gpus": "2", "lr": "0.5", "steps": "3", "name": "x", "flag": "True"}, "tags": {"phalanx.job": "runs-3", "phalanx.attempt": "runs-3.1", "phalanx.kind": "batch", "phalanx.queue": "default", "phalanx.code": "", "phalanx.config": "fd8d4cf6513dfc1c576157a2f0316de546c0a0cb2830dd5edef7449f102730a1", "phalanx.by": "ada"}, "at_ms": 1700000020000, "kind": "run_started"}');
CREATE TABLE policy (
	name VARCHAR(16) NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_policy PRIMARY KEY (name)
);
INSERT INTO "policy" VALUES('fleet','{"order":"fair","half_life":"7d","backfill":true,"heads":1,"classes":{"low":{"priority":0,"wait_target":""},"standard":{"priority":50,"wait_target":"30m"},"high":{"priority":75,"wait_target":"5m"}},"queues":{"research":{"parent":"","weight":2.0,"quota":{},"limit":{},"borrow":true,"lend":true,"budget":null,"cells":null}},"preemption":{"enabled":true,"reclaim":true,"max_victims":64,"min_runtime":"2m","max_evictions":8},"bookings":{},"windows":{},"spares":{},"spot_fallback":"10m","packing":"tight","nodes":[],"region":"","health":{"stragglers":"tell","corruption":"tell"},"checkpoint_store":""}');
CREATE TABLE secrets (
	name VARCHAR(64) NOT NULL, 
	sealed TEXT NOT NULL, 
	created_ms INTEGER NOT NULL, 
	CONSTRAINT pk_secrets PRIMARY KEY (name)
);
INSERT INTO "secrets" VALUES('KEY','+hK4jDMi0fzgehLUBPGOjVy/JDkU70U52fvTPdXfdBi/',1700000020000);
CREATE TABLE streams (
	attempt VARCHAR(96) NOT NULL, 
	rank INTEGER NOT NULL, 
	records_offset INTEGER NOT NULL, 
	CONSTRAINT pk_streams PRIMARY KEY (attempt, rank), 
	CONSTRAINT fk_streams_attempt FOREIGN KEY(attempt) REFERENCES attempts (id)
);
INSERT INTO "streams" VALUES('tiny-1.1',0,100);
CREATE TABLE submits (
	"key" VARCHAR(255) NOT NULL, 
	job VARCHAR(80) NOT NULL, 
	CONSTRAINT pk_submits PRIMARY KEY ("key"), 
	CONSTRAINT fk_submits_job FOREIGN KEY(job) REFERENCES jobs (id)
);
INSERT INTO "submits" VALUES('k-tiny','tiny-1');
CREATE TABLE tokens (
	sha256 VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	created_ms INTEGER NOT NULL, 
	CONSTRAINT pk_tokens PRIMARY KEY (sha256)
);
INSERT INTO "tokens" VALUES('08e8c1bfe32982bb55e9e3ff92886524cf3fea9074fb1a5f885cc5bd43de2e94','admin','admin',1700000020000);
INSERT INTO "tokens" VALUES('dcadd73b1644cc600000089ecec5cdc0f488572967bdce581e066985940ead7a','node','node',1700000020000);
CREATE TABLE usage (
	queue VARCHAR(64) NOT NULL, 
	record TEXT NOT NULL, 
	CONSTRAINT pk_usage PRIMARY KEY (queue)
);
INSERT INTO "usage" VALUES('default','{"queue":"default","at_ms":1700000020000,"decayed":39999.541572780385,"spent":{"day":{"since_ms":1699920000000,"device_ms":40000,"money":0.0005555555555555556},"week":{"since_ms":1699833600000,"device_ms":40000,"money":0.0005555555555555556},"month":{"since_ms":1698796800000,"device_ms":40000,"money":0.0005555555555555556},"total":{"since_ms":0,"device_ms":40000,"money":0.0005555555555555556}},"node_ms":20000,"failures":0}');
CREATE INDEX ix_events_job ON events (job, seq);
CREATE INDEX ix_attempts_job ON attempts (job);
CREATE INDEX ix_notices_due ON notices (webhook, due_ms);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outbox',6);
INSERT INTO "sqlite_sequence" VALUES('notices',1);
COMMIT;
