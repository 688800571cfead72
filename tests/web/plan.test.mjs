import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { follow, nextRuns, note } from '../../web/plan/answers.mjs'
import { asker } from '../../web/plan/ask.mjs'
import { questionOf, questionWithoutPlan } from '../../web/plan/graph.mjs'
import { cardWords, memoryWords, remedyWords } from '../../web/plan/memory.mjs'
import { cellWords, columnsOf, meshGroups, meshWords, remarkWords } from '../../web/plan/mesh.mjs'
import { predictedWords } from '../../web/plan/predicted.mjs'
import { words } from '../../web/words.mjs'

const texts = (language) =>
  JSON.parse(readFileSync(new URL(`../../locales/${language}/main.json`, import.meta.url))).paralleldit
const en = texts('en')
const say = (path, values) => words([en], path, values)

/** A graph as LiteGraph has it. nodes: id to {type, widgets, outputs, mode}; links: [from, output, to, input, type]. */
function graphOf(nodes, links) {
  const graph = {
    getLink: (id) => (links[id] ? { origin_id: links[id][0], target_id: links[id][2] } : undefined),
    getNodeById: (id) => made[id] ?? null
  }
  const made = {}
  for (const [id, { type, widgets = {}, outputs = [], mode = 0 }] of Object.entries(nodes)) {
    made[id] = {
      id,
      type,
      mode,
      graph,
      widgets: Object.entries(widgets).map(([name, value]) => ({ name, value })),
      outputs: outputs.map((kind, slot) => ({
        type: kind,
        links: links.flatMap((link, index) => (link[0] === id && link[1] === slot ? [index] : []))
      })),
      inputs: links.flatMap((link, index) => (link[2] === id ? [{ name: link[3], link: index, type: link[4] }] : []))
    }
  }
  return made
}

const PLAN = { type: 'ParallelDiT_Plan', widgets: { mode: 'manual', cfg: 2 }, outputs: ['PARALLEL_PLAN'] }
const LOADER = {
  type: 'ParallelDiT_LoadDiffusionModel',
  widgets: { model_name: 'flux', dtype: 'bf16', group: 2 },
  outputs: ['MODEL']
}
const sampler = (cfg) => ({ type: 'KSampler', widgets: { sampler_name: 'euler', cfg }, outputs: ['LATENT'] })

test('the question follows the model through reroutes, bypassed nodes and LoRAs to what samples with it', () => {
  const nodes = graphOf(
    {
      plan: PLAN,
      knee: { type: 'Reroute', outputs: ['*'] },
      loader: LOADER,
      lora: { type: 'LoraLoaderModelOnly', outputs: ['MODEL'] },
      skipped: { type: 'ModelThing', outputs: ['LATENT', 'MODEL'], mode: 4 },
      label: { type: 'ParallelDiT_ClassLabel', outputs: ['CONDITIONING'] },
      sampler: sampler(3),
      muted: { ...sampler(9), mode: 2 }
    },
    [
      ['plan', 0, 'knee', ''],
      ['knee', 0, 'loader', 'plan'],
      ['loader', 0, 'lora', 'model'],
      ['loader', 0, 'label', 'model'],
      ['lora', 0, 'skipped', 'model'],
      ['skipped', 1, 'sampler', 'model'],
      ['lora', 0, 'muted', 'model']
    ]
  )
  assert.deepEqual(questionOf(nodes.plan), {
    question: {
      values: { mode: 'manual', cfg: 2 },
      loaders: [
        { model_name: 'flux', dtype: 'bf16', group: 2, samplers: [{ type: 'KSampler', cfg: 3, picture: null }] }
      ]
    },
    open: []
  })
})

test('behind a guider, the sampler has its guidance and the name of the sampler node that goes to it', () => {
  const nodes = graphOf(
    {
      plan: PLAN,
      loader: LOADER,
      guider: { type: 'BasicGuider', outputs: ['GUIDER'] },
      select: { type: 'KSamplerSelect', widgets: { sampler_name: 'heun' }, outputs: ['SAMPLER'] },
      custom: { type: 'SamplerCustomAdvanced', outputs: ['LATENT', 'LATENT'] }
    },
    [
      ['plan', 0, 'loader', 'plan'],
      ['loader', 0, 'guider', 'model'],
      ['guider', 0, 'custom', 'guider'],
      ['select', 0, 'custom', 'sampler']
    ]
  )
  assert.deepEqual(questionOf(nodes.plan).question.loaders[0].samplers, [
    { type: 'SamplerCustomAdvanced', cfg: 1, picture: null }
  ])
})

test('what is sampled is known where its latent is made by a node from nothing, and of whole sizes', () => {
  const latent = (widgets, node = {}) => ({ type: 'Empty', widgets, outputs: ['LATENT'], ...node })
  const picture = (made, ...more) => {
    const links = [
      ['plan', 0, 'loader', 'plan', 'PARALLEL_PLAN'],
      ['loader', 0, 'sampler', 'model', 'MODEL'],
      ['knee', 0, 'sampler', 'latent_image', 'LATENT'],
      ['latent', 0, 'knee', '', '*'],
      ...more
    ]
    const knee = { type: 'Reroute', outputs: ['*'] }
    const width = { type: 'PrimitiveInt', widgets: { value: 640 }, outputs: ['INT'] }
    const nodes = graphOf({ plan: PLAN, loader: LOADER, sampler: sampler(1), knee, latent: made, width }, links)
    return questionOf(nodes.plan).question.loaders[0].samplers[0].picture
  }
  const video = { width: 832, height: 480, length: 81, batch_size: 1, color: 'red' }
  assert.deepEqual(picture(latent(video)), { width: 832, height: 480, length: 81, batch_size: 1 })
  assert.deepEqual(picture(latent(video), ['width', 0, 'latent', 'width', 'INT']).width, 640)
  assert.deepEqual(picture(latent({ width: 64, height: 64 })), { width: 64, height: 64 })
  for (const other of [{ width: 64 }, { width: 64, height: 0.5 }, { width: 64, height: '64' }]) {
    assert.equal(picture(latent(other)), null)
  }
  assert.equal(picture(latent(video, { mode: 4 })), null)
  assert.equal(picture(latent(video), ['width', 0, 'latent', 'samples', 'LATENT']), null)
})

/** Nodes in a subgraph that is seen as these hosts, each {inputs, outputs, widgets}, of the names that link in and out. */
function within(nodes, links, hosts) {
  const made = graphOf(nodes, links)
  const [{ graph }] = Object.values(made)
  const outside = { getNodeById: () => null, subgraphs: new Map([['sub', graph]]) }
  outside.nodes = hosts.map(({ widgets = {}, inputs = [] }) => ({
    graph: outside,
    subgraph: graph,
    mode: 0,
    inputs: inputs.map((name) => ({ name, link: null })),
    outputs: [],
    getWidgetFromSlot: ({ name }) => (name in widgets ? { value: widgets[name] } : undefined)
  }))
  Object.assign(graph, { rootGraph: outside, nodes: Object.values(made) })
  const { getLink } = graph
  graph.getLink = (id) => {
    const { origin_id: from } = getLink(id)
    return { ...getLink(id), ...(from === 'in' ? { originIsIoNode: true, origin_slot: links[id][1] } : {}) }
  }
  return made
}

test('what the node of a subgraph is given counts, and nothing where there are several such nodes', () => {
  const nodes = { plan: PLAN, loader: LOADER, sampler: sampler(3) }
  const links = [
    ['plan', 0, 'loader', 'plan'],
    ['loader', 0, 'sampler', 'model'],
    ['in', 0, 'sampler', 'cfg'],
    ['in', 1, 'loader', 'model_name']
  ]
  const host = (cfg) => ({ inputs: ['guidance', 'file'], widgets: { guidance: cfg, file: 'wan' } })
  const ask = (...hosts) => questionOf(within(nodes, links, hosts).plan).question.loaders
  const [{ model_name, samplers }] = ask(host(1.5))
  assert.deepEqual([model_name, samplers[0].cfg], ['wan', 1.5])
  assert.deepEqual(ask(host(1.5), host(2)), [])
  const alone = [['in', 0, 'loader', 'plan']]
  const lone = (count) => within({ loader: LOADER }, alone, Array(count).fill({ inputs: ['plan'] })).loader
  assert.ok(questionWithoutPlan(lone(1)).question, 'an input that nothing is linked to')
  assert.equal(questionWithoutPlan(lone(2)).question, null, 'it may be another each time')
})

test('a plan finds loaders inside of subgraphs, and a loader samplers outside of its own', () => {
  const inner = graphOf({ loader: LOADER }, [])
  const outer = graphOf({ plan: PLAN, sub: { type: 'sub' }, sampler: sampler(4) }, [
    ['plan', 0, 'sub', 'plan'],
    ['sub', 0, 'sampler', 'model']
  ])
  const { graph: root } = outer.plan
  const { graph } = inner.loader
  Object.assign(root, { nodes: Object.values(outer), subgraphs: new Map([['sub', graph]]), rootGraph: root })
  Object.assign(outer.sub, { subgraph: graph, outputs: [{ type: 'MODEL', links: [1] }] })
  Object.assign(graph, { rootGraph: root, nodes: [inner.loader], inputs: [{ linkIds: ['in'] }] })
  const both = { in: { target_id: 'loader' }, out: { targetIsIoNode: true, target_slot: 0 } }
  graph.getLink = (id) => both[id]
  inner.loader.outputs[0].links = ['out']
  const { getLink } = root
  root.getLink = (id) => ({ ...getLink(id), target_slot: 0 })
  const { loaders } = questionOf(outer.plan).question
  assert.deepEqual(
    loaders.map(({ model_name, samplers }) => [model_name, samplers[0]?.cfg]),
    [['flux', 4]]
  )
  outer.sub.mode = 2
  assert.deepEqual(questionOf(outer.plan).question.loaders, [], 'it is muted')
})

test('a linked degree is read off a primitive, and named as open behind a node that computes', () => {
  const links = [['number', 0, 'plan', 'cfg']]
  const primitive = { type: 'PrimitiveInt', widgets: { value: 4 }, outputs: ['INT'] }
  assert.equal(questionOf(graphOf({ plan: PLAN, number: primitive }, links).plan).question.values.cfg, 4)
  const math = { type: 'Math', widgets: { formula: '1+1' }, outputs: ['INT'] }
  assert.deepEqual(questionOf(graphOf({ plan: PLAN, number: math }, links).plan).open, ['cfg'])
  const auto = { ...PLAN, widgets: { mode: 'auto', cfg: 2 } }
  assert.deepEqual(questionOf(graphOf({ plan: auto, number: math }, links).plan).open, [])
})

test("the node's own drawing is no part of the question", () => {
  const { plan } = graphOf({ plan: PLAN }, [])
  plan.widgets.push({ name: 'mesh', value: '', serialize: false })
  assert.deepEqual(questionOf(plan).question.values, { mode: 'manual', cfg: 2 })
})

/** Ranks as the server tells them, of cfg branches × stages × ulysses. */
function answerOf(cfg, pipefusion, ulysses) {
  const ranks = []
  for (let batch = 0; batch < cfg; batch++)
    for (let stage = 0; stage < pipefusion; stage++)
      for (let share = 0; share < ulysses; share++)
        ranks.push({
          rank: ranks.length,
          branch: cfg === 2 ? ['cond', 'uncond'][batch] : null,
          share: [batch, cfg],
          rows: [batch / cfg, (batch + 1) / cfg],
          stage: [stage, pipefusion],
          blocks: pipefusion > 1 ? [stage * 4, stage * 4 + 3] : [0, 7],
          heads: [share * 2, share * 2 + 1],
          tokens: [[share / ulysses, (share + 1) / ulysses]],
          head_share: ulysses > 1 ? [share / ulysses, (share + 1) / ulysses] : null,
          weight_share: null
        })
  return { ranks, world: ranks.length }
}

/** What is said of each rank. */
function toldOf(answer) {
  return meshGroups(answer).flatMap((group) =>
    group.stages.flatMap((stage) =>
      stage.cells.map((cell) => cellWords(cell, group, stage, answer.device ?? 'cpu', say))
    )
  )
}

test('ranks fall into branches, stages and cells, and are told in words', () => {
  const answer = answerOf(2, 2, 2)
  const groups = meshGroups(answer)
  assert.deepEqual(
    groups.map((group) => group.stages.map((stage) => stage.cells.map((cell) => cell.rank))),
    [
      [
        [0, 1],
        [2, 3]
      ],
      [
        [4, 5],
        [6, 7]
      ]
    ]
  )
  assert.deepEqual(groups[1].stages[1].cells[1].heads, [0.5, 1])
  assert.equal(meshWords(groups, answer.world, say), '8 ranks')
  const [first, last] = [toldOf(answer)[0], toldOf(answer)[7]]
  assert.equal(first, 'Rank 0 on CPU: cond, blocks 0–3, tokens 0–50 %, heads 0–1 in attention')
  assert.equal(last, 'Rank 7 on CPU: uncond, blocks 4–7, tokens 50–100 %, heads 2–3 in attention')
})

test('a rank is told with its card, and with what it keeps of the weights where that is known', () => {
  const GIB = 2 ** 30
  const answer = answerOf(1, 2, 1)
  answer.ranks[0].card = { index: 2, name: 'RTX 4090', total: 24 * GIB }
  const told = toldOf({ ...answer, device: 'cuda', memory: { kept: [3 * GIB, 4 * GIB] } })
  assert.equal(told[0], 'Rank 0 on GPU 2 (RTX 4090): blocks 0–3, all tokens, 3.0 GiB of weights')
  assert.equal(told[1], 'Rank 1: blocks 4–7, all tokens, 4.0 GiB of weights')
})

test('columns make full rows where few enough of them do', () => {
  const columns = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16].map((count) => columnsOf(count))
  assert.deepEqual(columns, [1, 2, 3, 4, 4, 3, 4, 4, 3, 4, 4])
})

test('what cards have is told once for all that are alike, and what would fit where they lack', () => {
  const GIB = 2 ** 30
  const card = (index, name, size) => ({ card: { index, name, total: size * GIB } })
  const ranks = [card(0, 'A', 24), card(2, 'A', 24), card(3, 'A', 24), card(1, 'B', 12)]
  const memory = { fits: [true, true, true, false], reserve: 0.5 * GIB }
  const found = cardWords({ ranks, memory }, say)
  assert.deepEqual(found, [
    { text: 'GPU 0, 2–3 (A): 24.0 GiB, of which ComfyUI keeps 512 MiB free: fits', lacks: false },
    { text: 'GPU 1 (B): 12.0 GiB, of which ComfyUI keeps 512 MiB free: does not fit', lacks: true }
  ])
  assert.deepEqual(cardWords({ ranks, memory: { fits: [] } }, say), [])
  const remedies = {
    words: 'would_fit',
    found: [
      { key: 'would_fp8', values: {} },
      { key: 'would_host', values: {} }
    ]
  }
  const either = (words) => words.join(' or ')
  assert.equal(remedyWords({ memory: { remedies } }, either, say), 'What would fit: fp8 weights or weights in RAM.')
  assert.equal(remedyWords({ memory: { remedies: null } }, either, say), null)
})

test('a loader without a plan asks for an automatic one, and one that has one asks nothing', () => {
  const asked = (links, more) =>
    questionWithoutPlan(graphOf({ plan: PLAN, loader: { ...LOADER, ...more }, sampler: sampler(3) }, links).loader)
      .question
  const sampled = ['loader', 0, 'sampler', 'model']
  assert.deepEqual(asked([sampled]), {
    values: { mode: 'auto' },
    loaders: [{ model_name: 'flux', dtype: 'bf16', group: 2, samplers: [{ type: 'KSampler', cfg: 3, picture: null }] }]
  })
  assert.equal(asked([sampled, ['plan', 0, 'loader', 'plan']]), null)
  assert.equal(asked([sampled], { mode: 4 }), null)
})

test('what a group has of the batch is told where it goes by speed', () => {
  const answer = answerOf(2, 1, 1)
  const rows = [
    [0, 2 / 3],
    [2 / 3, 1]
  ]
  answer.ranks = answer.ranks.map((rank, index) => ({ ...rank, branch: null, rows: rows[index] }))
  assert.deepEqual(toldOf(answer), [
    'Rank 0 on CPU: batch 1/2, 67 %, all tokens',
    'Rank 1 on CPU: batch 2/2, 33 %, all tokens'
  ])
})

test('one rank holds all, and more than sixteen are counted', () => {
  const one = answerOf(1, 1, 1)
  assert.equal(meshWords(meshGroups(one), 1, say), '1 rank')
  const many = answerOf(2, 4, 8)
  const told = meshWords(meshGroups(many), many.world, say)
  assert.equal(told, '64 ranks: shares of the batch: 2, stages in each: 4, ranks in each of those: 8')
})

test('memory is told for all ranks at once, or stage by stage, with the peak where the latents are known', () => {
  const GIB = 2 ** 30
  const lines = (answer, memory) => memoryWords({ ...answer, memory }, meshGroups(answer), say)
  assert.deepEqual(lines(answerOf(2, 1, 1), { kept: [12 * GIB], working: 1.5 * GIB, fetched: 0 }), [
    'Each rank: 12.0 GiB of weights at rest, 13.5 GiB with a forward (estimate)'
  ])
  const told = lines(answerOf(1, 2, 2), { kept: [3 * GIB, 4 * GIB], working: null, fetched: 0 })
  assert.equal(told.length, 2)
  assert.match(told[0], /^blocks 0–3: 3\.0 GiB of weights at rest; what a forward takes is known with/)
  assert.match(told[1], /^blocks 4–7: 4\.0 GiB/)
  assert.deepEqual(lines(answerOf(1, 2, 2), { kept: [3 * GIB, 3 * GIB], working: 0, fetched: 0 }).length, 1)
  const onCpu = lines({ ...answerOf(1, 1, 1), device: 'cpu' }, { kept: [3 * GIB], working: null, fetched: 0 })
  assert.deepEqual(onCpu, ['Each rank: 3.0 GiB of weights'])
  for (const nothing of [null, undefined]) assert.deepEqual(lines(answerOf(1, 1, 1), nothing), [])
})

test("a remark is in the editor's language where that has it, else in the server's words", () => {
  const remark = { key: 'auto_gpus', values: { devices: 4 }, text: 'auto uses all GPUs: 4.' }
  assert.equal(remarkWords(remark, say), remark.text)
  const inChinese = (path, values) => words([texts('zh'), en], path, values)
  assert.equal(remarkWords(remark, inChinese), '自动：使用全部 4 块 GPU。')
})

const after = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

test('a burst of changes is one question, and the same question is not asked again', async () => {
  const sent = []
  const shown = []
  let question = 'a'
  const ask = asker({
    pause: 10,
    read: () => question,
    send: async (text) => sent.push(text) && `${text}!`,
    show: (answer) => shown.push(answer)
  })
  for (question of ['a', 'b', 'c']) ask()
  await after(30)
  ask()
  await after(30)
  assert.deepEqual([sent, shown], [['c'], ['c!']])
  ask(true)
  await after(30)
  assert.deepEqual(sent, ['c', 'c'])
})

test('an answer to an older question is dropped, and after a failure the question is asked again', async () => {
  const shown = []
  const failed = []
  const waiting = {}
  let question = 'slow'
  const ask = asker({
    pause: 1,
    read: () => question,
    send: (text) => new Promise((resolve, reject) => (waiting[text] = { resolve, reject })),
    show: (answer) => shown.push(answer),
    fail: (error) => failed.push(error.message)
  })
  ask()
  await after(15)
  question = 'fast'
  ask()
  await after(15)
  waiting.fast.resolve('fast!')
  waiting.slow.resolve('slow!')
  await after(5)
  assert.deepEqual(shown, ['fast!'])
  question = 'lost'
  ask()
  await after(15)
  waiting.lost.reject(new Error('gone'))
  await after(5)
  delete waiting.lost
  ask()
  await after(15)
  assert.deepEqual(failed, ['gone'])
  assert.ok(waiting.lost)
})

test('the best plans are told with their seconds and bytes, and what they follow from', () => {
  const GIB = 1 << 30
  const row = (plan, seconds, fits = true) => {
    const [axis, degree] = plan.split('=')
    return { plan, values: { [axis]: Number(degree) }, seconds, bytes: 12 * GIB, fits, has_run: false }
  }
  const best = [row('dp=2', 1.25), row('ulysses=2', 1.5), row('ring=2', 2, false)]
  const one_device = { ...row('one rank', 2.25), has_run: true }
  const told = (plan, more) =>
    predictedWords({ predicted: { plan, best, one_device, alone: true, is_measured: true, ...more } }, say)
  const first = told(best[0], {})
  assert.deepEqual(first.best.slice(0, 2), [
    'dp=2: 1.25 s a step, 12.0 GiB a rank',
    'ulysses=2: 1.50 s a step, 12.0 GiB a rank'
  ])
  assert.match(first.best[2], /does not fit/)
  assert.match(first.alone, /One device is faster here/)
  assert.match(first.title, /measured here/)
  assert.deepEqual([first.chosen, first.own], [0, null])
  const other = told(row('tp=2', 3), { alone: false, is_measured: false })
  assert.equal(other.own, 'This plan: tp=2: 3.00 s a step, 12.0 GiB a rank')
  assert.match(other.title, /assumed/)
  assert.deepEqual([other.chosen, other.alone], [-1, null])
  assert.equal(predictedWords({ predicted: null }, say), null)
  assert.equal(first.step, '1.25 s a step (predicted): ×1.80 of one device, 2.25 s (as it ran here)')
  assert.match(
    other.step,
    /^3\.00 s a step \(predicted by assumed speeds\): ×0\.75 of one device, 2\.25 s \(as it ran here\)/
  )
  const alike = told(best[0], { one_device: { ...one_device, has_run: false } }).step
  assert.equal(alike, '1.25 s a step: ×1.80 of one device, 2.25 s (both predicted)')
  assert.equal(told(one_device, {}).step, '2.25 s a step (as it ran here)')
  assert.match(
    told(best[0], { one_device: { ...one_device, fits: false } }).step,
    /one device alone does not have enough memory/
  )
  assert.match(told(null, {}).step, /is not predicted for PipeFusion/)
})

test('what was answered about the plans of loaders is told by group, of those that run', () => {
  const nodes = graphOf({ plan: PLAN, planned: LOADER, also: LOADER, lone: LOADER, muted: { ...LOADER, mode: 2 } }, [
    ['plan', 0, 'planned', 'plan'],
    ['plan', 0, 'also', 'plan']
  ])
  const [root, answers] = [nodes.plan.graph, [{ plan: 'cfg=2' }, { plan: 'ulysses=2' }]]
  Object.assign(root, { nodes: Object.values(nodes), subgraphs: new Map() })
  let heard = 0
  follow(() => heard++)
  assert.deepEqual([...nextRuns(root)], [], 'nothing was answered yet')
  note(nodes.plan, answers[0])
  note(nodes.lone, answers[1])
  note(nodes.muted, answers[1])
  assert.equal(heard, 3)
  assert.deepEqual(
    [...nextRuns(root)],
    [
      [
        2,
        [
          { answer: answers[0], models: ['flux', 'flux'], isPlanned: true },
          { answer: answers[1], models: ['flux'], isPlanned: false }
        ]
      ]
    ]
  )
  note(nodes.plan, null)
  assert.equal(nextRuns(root).get(2).length, 1)
})
