import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findNextRuns, noteAnswer, onAnswer } from '../../web/plan/answers.mjs'
import { makeQuestion, makeQuestionWithoutPlan } from '../../web/plan/graph.mjs'

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

test('the question follows the model through reroutes, bypassed nodes and LoRAs to its samplers', () => {
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
  assert.deepEqual(makeQuestion(nodes.plan), {
    question: {
      values: { mode: 'manual', cfg: 2 },
      loaders: [
        { model_name: 'flux', dtype: 'bf16', group: 2, samplers: [{ type: 'KSampler', cfg: 3, picture: null }] }
      ]
    },
    open: []
  })
})

test("behind a guider, the question has the guider's cfg and the sampler's type", () => {
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
  assert.deepEqual(makeQuestion(nodes.plan).question.loaders[0].samplers, [
    { type: 'SamplerCustomAdvanced', cfg: 1, picture: null }
  ])
})

test('the sampled size is known if an empty-latent node makes the latent, with whole numbers', () => {
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
    return makeQuestion(nodes.plan).question.loaders[0].samplers[0].picture
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

test("a value at a subgraph's node counts, unless several nodes show the subgraph", () => {
  const nodes = { plan: PLAN, loader: LOADER, sampler: sampler(3) }
  const links = [
    ['plan', 0, 'loader', 'plan'],
    ['loader', 0, 'sampler', 'model'],
    ['in', 0, 'sampler', 'cfg'],
    ['in', 1, 'loader', 'model_name']
  ]
  const host = (cfg) => ({ inputs: ['guidance', 'file'], widgets: { guidance: cfg, file: 'wan' } })
  const ask = (...hosts) => makeQuestion(within(nodes, links, hosts).plan).question.loaders
  const [{ model_name, samplers }] = ask(host(1.5))
  assert.deepEqual([model_name, samplers[0].cfg], ['wan', 1.5])
  assert.deepEqual(ask(host(1.5), host(2)), [])
  const alone = [['in', 0, 'loader', 'plan']]
  const lone = (count) => within({ loader: LOADER }, alone, Array(count).fill({ inputs: ['plan'] })).loader
  assert.ok(makeQuestionWithoutPlan(lone(1)).question, 'an input that nothing is linked to')
  assert.equal(makeQuestionWithoutPlan(lone(2)).question, null, 'it may be another each time')
})

test('a plan finds loaders inside of subgraphs, and a loader finds samplers outside of its own', () => {
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
  const { loaders } = makeQuestion(outer.plan).question
  assert.deepEqual(
    loaders.map(({ model_name, samplers }) => [model_name, samplers[0]?.cfg]),
    [['flux', 4]]
  )
  outer.sub.mode = 2
  assert.deepEqual(makeQuestion(outer.plan).question.loaders, [], 'it is muted')
})

test('a linked degree is read from a primitive; behind a node that computes, it is named as open', () => {
  const links = [['number', 0, 'plan', 'cfg']]
  const primitive = { type: 'PrimitiveInt', widgets: { value: 4 }, outputs: ['INT'] }
  assert.equal(makeQuestion(graphOf({ plan: PLAN, number: primitive }, links).plan).question.values.cfg, 4)
  const math = { type: 'Math', widgets: { formula: '1+1' }, outputs: ['INT'] }
  assert.deepEqual(makeQuestion(graphOf({ plan: PLAN, number: math }, links).plan).open, ['cfg'])
  const auto = { ...PLAN, widgets: { mode: 'auto', cfg: 2 } }
  assert.deepEqual(makeQuestion(graphOf({ plan: auto, number: math }, links).plan).open, [])
})

test("the node's own drawing is not part of the question", () => {
  const { plan } = graphOf({ plan: PLAN }, [])
  plan.widgets.push({ name: 'mesh', value: '', serialize: false })
  assert.deepEqual(makeQuestion(plan).question.values, { mode: 'manual', cfg: 2 })
})

test('a loader without a plan asks for an automatic one, and a loader with a plan asks nothing', () => {
  const asked = (links, more) =>
    makeQuestionWithoutPlan(graphOf({ plan: PLAN, loader: { ...LOADER, ...more }, sampler: sampler(3) }, links).loader)
      .question
  const sampled = ['loader', 0, 'sampler', 'model']
  assert.deepEqual(asked([sampled]), {
    values: { mode: 'auto' },
    loaders: [{ model_name: 'flux', dtype: 'bf16', group: 2, samplers: [{ type: 'KSampler', cfg: 3, picture: null }] }]
  })
  assert.equal(asked([sampled, ['plan', 0, 'loader', 'plan']]), null)
  assert.equal(asked([sampled], { mode: 4 }), null)
})

test('the answers about loaders that run are listed by worker group', () => {
  const nodes = graphOf({ plan: PLAN, planned: LOADER, also: LOADER, lone: LOADER, muted: { ...LOADER, mode: 2 } }, [
    ['plan', 0, 'planned', 'plan'],
    ['plan', 0, 'also', 'plan']
  ])
  const [root, answers] = [nodes.plan.graph, [{ plan: 'cfg=2' }, { plan: 'ulysses=2' }]]
  Object.assign(root, { nodes: Object.values(nodes), subgraphs: new Map() })
  let heard = 0
  onAnswer(() => heard++)
  assert.deepEqual([...findNextRuns(root)], [], 'nothing was answered yet')
  noteAnswer(nodes.plan, answers[0])
  noteAnswer(nodes.lone, answers[1])
  noteAnswer(nodes.muted, answers[1])
  assert.equal(heard, 3)
  assert.deepEqual(
    [...findNextRuns(root)],
    [
      [
        2,
        [
          { answer: answers[0], models: ['flux', 'flux'] },
          { answer: answers[1], models: ['flux'] }
        ]
      ]
    ]
  )
  noteAnswer(nodes.plan, null)
  assert.equal(findNextRuns(root).get(2).length, 1)
})

test('models whose files are missing are one answer, in the order in which they are sampled', () => {
  const named = (model_name) => ({ ...LOADER, widgets: { ...LOADER.widgets, model_name } })
  const nodes = graphOf({ low: named('low'), high: named('high'), second: sampler(3), first: sampler(3), plan: PLAN }, [
    ['low', 0, 'second', 'model'],
    ['high', 0, 'first', 'model'],
    ['plan', 0, 'low', 'nothing'],
    ['plan', 0, 'high', 'nothing']
  ])
  Object.assign(nodes.first, { order: 3 })
  Object.assign(nodes.second, { order: 4 })
  assert.deepEqual(
    makeQuestion(nodes.plan).question.loaders.map((loader) => loader.model_name),
    ['high', 'low']
  )
  const root = Object.assign(nodes.low.graph, { nodes: Object.values(nodes), subgraphs: new Map() })
  const missing = (model) => ({ plan: '', missing: [{ model, folder: 'diffusion_models' }] })
  noteAnswer(nodes.low, missing('low'))
  noteAnswer(nodes.high, missing('high'))
  const [run, ...others] = findNextRuns(root).get(2)
  assert.deepEqual([run.models, others], [['high', 'low'], []])
  assert.deepEqual(
    run.answer.missing.map((each) => each.model),
    ['high', 'low']
  )
})
